"""How an error that ends a process is shown: one line, and a traceback where it is a bug."""

from .commands import PACKAGE


def is_expected(error: Exception) -> bool:
    """tasuki's typed errors and the system's name the mend; anything else is a bug with a
    traceback."""
    return isinstance(error, OSError) or type(error).__module__.startswith(f"{PACKAGE}.")


def line_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
