"""Programs of the harness that run on a host of their own, a network namespace."""

import sys
from pathlib import Path

import pytest

from tests.harness.namespaces import why_not
from tests.harness.programs import output_of

ROOT = Path(__file__).parents[2]


def require_namespaces() -> None:
    """Skips where this machine has none."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def run_in(space: str, module: str, *words: str) -> None:
    """`python -m MODULE WORDS` in that namespace, to its end, which must be a good one."""
    inside = ("ip", "netns", "exec", space)
    output_of([*inside, sys.executable, "-m", module, *words], cwd=ROOT)
