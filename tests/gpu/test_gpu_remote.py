"""A golden on a GPU that finds in a remote store what another node put there. The store is a real
S3 server."""

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
