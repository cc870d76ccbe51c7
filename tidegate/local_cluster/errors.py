"""What goes wrong with a local cluster, as a person is told it."""


class LocalClusterError(Exception):
    """One sentence that says what is wrong and, where there is one, the cure."""
