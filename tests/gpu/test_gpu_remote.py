"""A golden on a GPU finds another node's entries in a remote store. The store is a real S3
server."""

from collections.abc import Iterator

import pytest

from tests.harness.kept_goldens import RemoteGoldens
from tests.harness.s3_server import S3Server, running_s3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


class TestGoldensOfAnotherGpuNode(RemoteGoldens):
    device = "cuda"
