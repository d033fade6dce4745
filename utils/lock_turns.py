"""For how long a thread that computes in Python keeps the interpreter's lock where others wait for
it."""

import sys

_SECONDS = 0.0001
"""By default it is 50 times that; a token's way to a client and a window each cost several
turns."""


def shorten_lock_turns() -> None:
    """Of all threads of this process, in which some answer at once, as an event loop or a sender
    does, while others compute."""
    sys.setswitchinterval(min(sys.getswitchinterval(), _SECONDS))
