"""The checked-in stubs are what their .proto files say."""

from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools", reason="stubs are written by grpcio-tools")

from tasuki.proto import generate


def test_stubs_are_fresh(tmp_path: Path) -> None:
    if version("grpcio-tools") != generate.TOOLS:
        pytest.skip(f"stubs are written by grpcio-tools {generate.TOOLS}")
    generate.generate(tmp_path)
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(fresh) >= 6
    for name, text in fresh.items():
        assert text == (generate.HERE / name).read_text(), name
