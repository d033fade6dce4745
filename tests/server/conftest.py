"""A front over a scripted engine, for tests that need no settings of their own."""

from collections.abc import Iterator

import pytest

from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import Front, running_front, text_codec
from tests.harness.http_fixtures import HttpFront, running_http


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return text_codec(tmp_path_factory.mktemp("codec"))


@pytest.fixture
def front(codec: TextCodec) -> Iterator[Front]:
    with running_front(codec) as running:
        yield running


@pytest.fixture
def http(codec: TextCodec) -> Iterator[HttpFront]:
    with running_http(codec) as running:
        yield running
