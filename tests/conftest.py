"""Options of the whole run, and seeds that are new in each."""

import os
import random

import pytest

from tests.listed_skips import OPTION, ListedSkips

_SEEDS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, action="store_true", help="fail where a test skips that the list does not name"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEDS] = {}
    if config.getoption(OPTION):
        config.pluginmanager.register(ListedSkips(), "listed-skips")


@pytest.fixture
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """Another one in each run, which says at its end how to have this one again: SEED=..."""
    given = os.environ.get("SEED")
    seed = random.SystemRandom().randrange(2**32) if given is None else int(given)
    request.config.stash[_SEEDS][request.node.nodeid] = seed
    return seed


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seeds = config.stash[_SEEDS]
    if seeds:
        terminalreporter.section("seeds")
    for test, seed in seeds.items():
        terminalreporter.line(f"again: SEED={seed} .venv/bin/python -m pytest '{test}'")
