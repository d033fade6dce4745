"""Options of the whole run, coroutine tests, and new seeds for each run."""

import asyncio
import inspect
import os
import random
import shlex
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.listed_skips import OPTION, ListedSkips

_SEED = "seed"

# On a busy machine an example may take seconds instead of a millisecond.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


class FreshSeeds:
    """Lists at the end how to have each seed of the run again."""

    def __init__(self) -> None:
        self._seeds: dict[str, object] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _SEED:
                self._seeds[report.nodeid] = value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._seeds:
            terminalreporter.section("seeds")
        for test, seed in self._seeds.items():
            command = f"SEED={seed} .venv/bin/python -m pytest {shlex.quote(test)}"
            terminalreporter.line(f"again: {command}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, action="store_true", help="fail where a test skips that the list does not name"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FreshSeeds(), "fresh-seeds")
    if config.getoption(OPTION):
        config.pluginmanager.register(ListedSkips(), "listed-skips")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Restore the handler of SIGINT after a test that replaced it.

    With SIG_DFL or SIG_IGN a later test's interrupt would do nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    yield
    if signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """Return a new seed in each run. The end of the run says how to repeat it: SEED=..."""
    given = os.environ.get("SEED")
    seed = random.SystemRandom().randrange(2**32) if given is None else int(given)
    # In the report, because it also comes from worker processes.
    request.node.user_properties.append((_SEED, seed))
    return seed
