"""The published runs of VTC's artifact (Ying1123/VTC-artifact @ 192c2e20, fair_bench; Apache-2.0).

Each is one JSON object with what its client saw of every request: 1,500 of 27 tenants in 600 s, a
sample of LMSYS's chatbot arena on one A10G with Llama-2-7B, once under each scheduler. The reader
of ``tidegate.workload.traces`` gives the requests alone; this one gives their outcomes too, which
are what the engine model of this package is compared with.
"""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.simulator.service_gap import ServedRequest

FOLDER = "vtc_artifact"
"""Below the folder that TIDEGATE_TRACES names."""


def read_run(path: Path) -> list[ServedRequest]:
    """One run, in order of arrival; an aborted request (latency -1) has no first token."""
    responses = json.loads(path.read_text())["result"]["responses"]
    runs = []
    for one in responses:
        arrival, first = one["req_time"], one["first_token_latency"]
        started = first != -1
        runs.append(
            ServedRequest(
                tenant=one["adapter_dir"],
                prompt_tokens=one["prompt_len"],
                output_tokens=one["output_len"],
                arrival=arrival,
                first_token=arrival + first if started else None,
                finished=arrival + one["request_latency"] if started else None,
            )
        )
    return sorted(runs, key=lambda each: each.arrival)
