"""Names of unknown fields, as a header may hold them. Pure."""

from collections.abc import Sequence

_MOST = 8
"""Names that an answer's header has."""
_LONGEST = 64


def shown_names(names: Sequence[str]) -> str:
    """Return some of them, and none that is no plain word."""
    plain = [name for name in names if name.isidentifier() and name.isascii()]
    return ", ".join(name for name in plain[:_MOST] if len(name) <= _LONGEST) or "?"
