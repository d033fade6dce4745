"""Options of the whole run, and seeds that are new in each."""

import os
import random
import shlex

import pytest

from tests.listed_skips import OPTION, ListedSkips

_SEED = "seed"
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
    # On the report, which comes from a worker's process too.
    request.node.user_properties.append((_SEED, seed))
    return seed


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> None:
    for name, value in getattr(report, "user_properties", ()):
        if name == _SEED:
            config.stash[_SEEDS][report.nodeid] = value


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seeds = config.stash[_SEEDS]
    if seeds:
        terminalreporter.section("seeds")
    for test, seed in seeds.items():
        terminalreporter.line(f"again: SEED={seed} .venv/bin/python -m pytest {shlex.quote(test)}")
