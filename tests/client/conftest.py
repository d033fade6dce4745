"""A front over a scripted engine, with a tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.grpc_fixtures import Front, running_front, text_codec


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with running_front(text_codec(tmp_path)) as running:
        yield running
