"""The multi-tenant load generator and its report.

Theory of operation: one task per tenant walks its planned requests; where they have times, each is
sent at its time whatever the answers do (open loop), else each caller of a closed loop sends when
its last answer ended. A sent request is one :class:`~tidegate.load.sample.Sample` that ends exactly
once: ok, refused, failed or unfinished. Latency of an open loop runs from the intended time, so
that a slow client or server can't hide a queue; the client's own lag is measured beside it and the
report says when the client, not the server, was the limit. Prompts, answers and keys are in no
sample and no report.
"""

from tidegate.load.errors import LoadError
from tidegate.load.report import build_report
from tidegate.load.run import LoadRun
from tidegate.load.sample import Sample, SampleState

__all__ = ["LoadError", "LoadRun", "Sample", "SampleState", "build_report"]
