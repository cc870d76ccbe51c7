"""How a command ends when it cannot do what it was asked."""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after a ^C, as a shell has it."""


def os_error_text(error: OSError) -> str:
    """In words for a person: what, and why."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


class CommandError(Exception):
    """Printed as one line on stderr; the process exits with ``exit_code``.

    1: it was tried and failed; 2: the input is wrong (as for wrong arguments).
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
