"""Connectors: tiers and peers that keep KV pages outside the device pool."""
