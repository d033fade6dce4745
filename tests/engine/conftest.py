"""A prefill and a decode engine for a test of what becomes of one hand-over."""

from collections.abc import Iterator

import pytest

from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import tiny_parts


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    """Both at rest where the test ends well."""
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both
        both.decode.assert_at_rest()
        both.prefill.assert_at_rest()
