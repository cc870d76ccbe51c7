"""Workloads: scenarios, arrival processes and trace files, as a stream of requests."""
