"""``python -m tidegate_operator``: the operator as a process; flags stand in :mod:`.settings`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from datetime import UTC, datetime

from kubernetes.aio.config import ConfigException

from tidegate_operator.process import run
from tidegate_operator.settings import Settings, parse_settings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what is passed as ``extra`` becomes fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """JSON on standard error; of kopf only what is wrong, for it logs every event."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await run(settings, stop)


def main() -> int:
    """Run the operator; its exit code."""
    settings = parse_settings(sys.argv[1:])
    configure_logging(settings.log_level)
    try:
        return asyncio.run(_run(settings))
    except ConfigException as error:
        logging.getLogger(__name__).error("no credentials for the API server: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
