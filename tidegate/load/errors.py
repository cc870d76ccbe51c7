"""What keeps a run from being measured at all."""


class LoadError(Exception):
    """The run can't start or go on; the message says why and what to do."""
