"""KV caches: allocators of device pages and connectors to other tiers."""
