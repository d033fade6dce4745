"""A browser for the pages of a file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.pages import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    # Imported here: a file without pages must not skip if playwright is not installed.
    from tests.harness.pages import launched

    with launched() as browser:
        yield browser
