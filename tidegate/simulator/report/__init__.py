"""From simulated runs to what a person reads: figures, economics, tables and one page of HTML.

Theory of operation: ``build`` turns results (one row per request) into the versioned
``SimulationReport``, purely; ``tables`` and ``html`` only lay out what stands in it, from the same
cells (``rows``). Plots alone go back to the results. Whatever is printed says first what of it may
be believed.
"""

from tidegate.simulator.report.build import Promises, Run, Setting, build_report

__all__ = ["Promises", "Run", "Setting", "build_report"]
