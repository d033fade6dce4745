"""Which of the walked functions run while the entries read small inputs of every shape.

Thread rule: the calling thread's alone.
"""

import sys
from collections.abc import Iterable
from types import FrameType

from .entries import Case
from .walk import ROOT, Place

SMALL = 1500
"""Characters: enough for every shape to get to its second part."""


def reached_by(cases: Iterable[Case]) -> frozenset[Place]:
    """Return the places of all functions of this repository that were called."""
    found: set[tuple[str, str]] = set()

    def see(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    for case in cases:
        run = case.prepare(SMALL)
        sys.setprofile(see)
        try:
            run()
        finally:
            sys.setprofile(None)
    root = f"{ROOT}/"
    return frozenset(
        f"{file.removeprefix(root)}:{name}" for file, name in found if file.startswith(root)
    )
