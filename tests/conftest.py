"""Options of the whole run."""

import pytest

from tests.listed_skips import OPTION, ListedSkips


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, action="store_true", help="fail where a test skips that the list does not name"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION):
        config.pluginmanager.register(ListedSkips(), "listed-skips")
