"""Tidegate: many tenants share one pool of vLLM GPUs and each keeps its promised latency."""
