"""A browser for the pages of a file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.pages import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    # Here, since a file without pages must not skip where playwright is not installed.
    from tests.harness.pages import launched

    with launched() as browser:
        yield browser
