"""What is sent to a simulated node: clients, sessions, and the workloads that the figures use."""

from tidegate.simulator.workloads.client import Client, ClosedClient, OpenClient, Workload
from tidegate.simulator.workloads.sessions import SessionClient

__all__ = ["Client", "ClosedClient", "OpenClient", "SessionClient", "Workload"]
