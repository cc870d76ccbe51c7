"""The scheduler plug-in that vLLM loads."""
