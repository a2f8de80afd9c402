"""KV allocators."""
