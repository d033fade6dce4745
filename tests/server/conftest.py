"""Fixture of a front over a scripted engine, for tests without settings of their own."""

from collections.abc import Iterator
from functools import partial

import pytest

from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import Front, running_front, text_codec
from tests.harness.http_fixtures import HttpFront, running_http


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return text_codec(tmp_path_factory.mktemp("codec"))


@pytest.fixture(params=[1, 3], ids=["one_front", "three_workers"])
def each_front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test over one front, and over three workers with each call on a fresh connection."""
    for name in ("running_front", "running_http"):
        start = partial(globals()[name], workers=request.param)
        monkeypatch.setitem(globals(), name, start)
        if hasattr(request.module, name):
            monkeypatch.setattr(request.module, name, start)


@pytest.fixture
def front(codec: TextCodec) -> Iterator[Front]:
    with running_front(codec) as running:
        yield running


@pytest.fixture
def http(codec: TextCodec) -> Iterator[HttpFront]:
    with running_http(codec) as running:
        yield running
