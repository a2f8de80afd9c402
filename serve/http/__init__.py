"""The OpenAI-compatible HTTP server over the embedding API."""
