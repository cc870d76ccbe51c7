"""The edge stage as a process of its own: which pod serves a request."""
