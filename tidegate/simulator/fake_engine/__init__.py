"""The fake engine: vLLM's HTTP server over the engine model, in real time.

A client or a proxy can't tell it from ``vllm serve`` by its endpoints, bodies, errors, metrics or
behaviour under load; what it says is made up. ``python -m tidegate.simulator.fake_engine serve
MODEL`` takes vLLM's flags (``options``). In a process of one's own: ``FakeEngine``.
"""

from tidegate.simulator.fake_engine.options import Options, parse_options
from tidegate.simulator.fake_engine.server import FakeEngine, serve

__all__ = ["FakeEngine", "Options", "parse_options", "serve"]
