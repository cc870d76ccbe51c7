"""Where the engine listens."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """A Unix socket's path, or host and port."""

    path: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """From ``uds:/path`` or ``http://host[:port]``; ValueError says what is wrong."""
        if text.startswith("uds:"):
            path = text.removeprefix("uds:")
            if not path.startswith("/"):
                raise ValueError(f"engine {text!r}: a Unix socket needs an absolute path")
            return cls(path=path)
        url = urlsplit(text)
        if url.scheme != "http" or not url.hostname or url.path not in ("", "/"):
            raise ValueError(f"engine {text!r}: expected uds:/path or http://host:port")
        return cls(host=url.hostname, port=url.port or 80)

    @property
    def authority(self) -> str:
        """The Host header."""
        return "engine" if self.path else f"{self.host}:{self.port}"
