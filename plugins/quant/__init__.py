"""Quantizers of weights and of KV pages."""
