"""Tokloom: a plugin-based microkernel for LLM inference."""

__version__ = "0.1.0"
