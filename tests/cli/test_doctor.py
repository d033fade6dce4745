"""Tests of `tasuki doctor`: it finds faults of the machine and proposes a remedy."""

import json
import os
import resource
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasuki.cli.doctor import checks
from tasuki.cli.doctor.checks import Verdict, model, peer, port, weights
from tasuki.cli.doctor.main import main
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.server.config import ServerConfig
from tests.harness.certificates import Authority
from tests.harness.goldens import reference_dir
from tests.harness.grpc_fixtures import running_front


def test_this_machine_passes(capsys: pytest.CaptureFixture[str]) -> None:
    ports = ["--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0"]
    status = main([*ports, str(embedded_model()), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert status == 0, rows
    subjects = {row["subject"] for row in rows}
    assert subjects >= {
        "python",
        "tree",
        "gpu",
        "nixl",
        "shm",
        "files",
        "clock",
        *("memory", "disk", "compiler", "hub", "grpc port", "http port"),
        "model",
        "weights",
    }


def test_a_taken_port_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        bind = f"127.0.0.1:{holder.getsockname()[1]}"
        assert port("http port", bind, "--http-bind").verdict is Verdict.FAILURE
        free = "127.0.0.1:0"
        for flags in (("--bind", bind, "--http-bind", free), ("--bind", free, "--http-bind", bind)):
            assert main([*flags]) == 1
            assert "-> stop what holds it" in capsys.readouterr().out
    assert port("grpc port", "nowhere", "--bind").mend == "give --bind HOST:PORT"


def test_little_room_is_warned_of_and_a_far_hub_is_only_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none" / "yet"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert str(tmp_path / "none" / "yet" / "hub") in checks.disk().found
    small = os.statvfs_result((4096, 4096, 100, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(checks.os, "statvfs", lambda folder: small)
    assert checks.disk().verdict is Verdict.WARNING
    monkeypatch.setattr(checks, "available_bytes", lambda: 2**20)
    assert checks.memory().verdict is Verdict.WARNING
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    # No server listens there, and no other host is contacted.
    monkeypatch.setattr(checks, "_HUB", "127.0.0.1")
    found = checks.hub()
    assert found.verdict is Verdict.OK and "serve a model from a folder" in found.found


def test_a_gpu_s_node_needs_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.compiler().verdict is Verdict.OK
    monkeypatch.setattr(checks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    found = checks.compiler()
    assert found.verdict is Verdict.FAILURE and "apt-get install gcc" in found.mend


def test_a_peer_answers_drains_or_is_not_there(tmp_path: Path) -> None:
    with running_front() as front:
        assert peer(front.address, "").verdict is Verdict.OK
        assert peer(front.address, str(tmp_path / "none.pem")).verdict is Verdict.FAILURE
    gone = peer(front.address, "")
    assert gone.verdict is Verdict.FAILURE and "UNAVAILABLE" in gone.found
    authority = Authority(tmp_path, "ours")
    issued = authority.issue()
    secured = ServerConfig(tls_cert=issued.certificate, tls_key=issued.key)
    with running_front(config=secured) as front:
        assert peer(front.address, authority.path).verdict is Verdict.OK
        assert "--peers-ca" in peer(front.address, "").mend


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    found = model(str(tmp_path))
    assert found.verdict is Verdict.FAILURE and "config.json" in found.found
    assert weights(str(tmp_path)).verdict is Verdict.FAILURE


def test_how_weights_are_stored_and_what_they_lack_is_seen_by_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    quantise_folder(reference_dir("small-dense"), made, RECIPES["fp8"])
    found = weights(str(made))
    assert found.verdict is Verdict.OK
    assert "as fp8_block+plain, with a draft layer" in found.found
    file = made / "model.safetensors"
    tensors = load_file(file)
    name = "mtp.layers.0.mlp.up_proj"
    stray = {f"{name}.pre_quant_scale": torch.ones(1)}
    lost = {key: value for key, value in tensors.items() if key != f"{name}.weight_scale_inv"}
    for damaged, said in ((tensors | stray, "read by nobody"), (lost, "its scale")):
        save_file(damaged, file)
        found = weights(str(made))
        assert found.verdict is Verdict.FAILURE and name in found.found and said in found.found


def test_rdma_cards_need_memory_that_may_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    for limit, verdict in (
        ((2**20, 2**20), Verdict.FAILURE),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), Verdict.OK),
    ):
        monkeypatch.setattr(checks.resource, "getrlimit", lambda _, limit=limit: limit)
        assert checks.locked_memory(tmp_path).verdict is verdict
    assert checks.locked_memory(tmp_path / "none").verdict is Verdict.OK


def test_little_shared_memory_and_few_files_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    small = os.statvfs_result((4096, 4096, 100, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(checks.os, "statvfs", lambda folder: small)
    assert checks.shared_memory().verdict is Verdict.WARNING
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, 256))
    assert checks.open_files().verdict is Verdict.WARNING
