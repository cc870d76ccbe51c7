"""Workloads: a scenario as a deterministic stream of requests.

Theory of operation: every tenant has generators of its own for times, lengths and prompts, seeded
from the scenario's seed and the tenant's name, so that adding a tenant or changing one distribution
leaves all other draws as they were. Requests are produced one by one; trace files are read as they
are replayed. What waits for answers comes from clients, which are told of them
(``tidegate.workload.clients``). The load generator sends all of it over HTTP; the simulator runs it
in virtual time.
"""

from tidegate.workload.prompts import prompt_text, prompt_token_ids
from tidegate.workload.requests import PlannedRequest, SharedPrefix
from tidegate.workload.scenario_file import read_scenario
from tidegate.workload.traces import TraceError
from tidegate.workload.workload import ScenarioError, Workload

__all__ = [
    "PlannedRequest",
    "ScenarioError",
    "SharedPrefix",
    "TraceError",
    "Workload",
    "prompt_text",
    "prompt_token_ids",
    "read_scenario",
]
