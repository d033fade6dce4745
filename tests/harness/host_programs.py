"""Programs of the harness and daemons that run on a host of their own, a network namespace."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tasuki.cli import main as cli
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.namespaces import inside, why_not
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


def daemon_of(space: str) -> Callable[..., ForkedDaemon]:
    """What launches a Node's daemon in that namespace."""
    return partial(ForkedDaemon, main=partial(_serve_in, space))


def _serve_in(space: str, arguments: list[str]) -> int:
    # The child has one thread as yet, so that all of it lives there.
    with inside(space):
        return cli.main(arguments)
