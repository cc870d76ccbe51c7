"""Who sends: clients, sessions, and the workloads that the figures use.

The simulator runs them in virtual time, the load generator sends what they send over HTTP.
"""

from tidegate.workload.clients.client import Client, ClosedClient, OpenClient, Workload
from tidegate.workload.clients.sessions import SessionClient

__all__ = ["Client", "ClosedClient", "OpenClient", "SessionClient", "Workload"]
