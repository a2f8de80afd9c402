"""Codecs of KV pages."""
