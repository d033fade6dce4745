"""What a daemon's log keeps."""

import logging

import pytest
from grpc._cython import cygrpc

from tasuki.utils.logs import configure_logging


@pytest.mark.parametrize("shape", ["text", "json"])
def test_a_caller_that_hangs_up_leaves_no_traceback(
    shape: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure_logging(shape, "info")

    def log(name: str, error: Exception) -> str:
        try:
            raise error
        except Exception:
            logging.getLogger(name).exception("raised by a servicer")
        return capsys.readouterr().err

    hung_up = cygrpc.ExecuteBatchError("Failed")
    assert log("grpc._cython.cygrpc", hung_up) == ""
    assert "Traceback" in log("grpc._cython.cygrpc", ValueError("a defect"))
    assert "Traceback" in log("tasuki.server.daemon.node", hung_up)
