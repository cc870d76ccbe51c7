"""``python -m tidegate.simulator.fake_engine serve MODEL [flags]``."""

from __future__ import annotations

import asyncio
import sys

from tidegate.simulator.fake_engine.options import parse_options
from tidegate.simulator.fake_engine.server import serve


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    options = parse_options(sys.argv[1:])
    try:
        import uvloop
    except ImportError:
        runner = asyncio.Runner()
    else:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with runner:
            runner.run(serve(options))
    except OSError as error:
        print(f"fake_engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
