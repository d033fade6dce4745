"""Tests of the dry run's part about pictures on a CPU: its bytes are those of a node's engine."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tasuki.engine.assembly.engines import build_pictures
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.server.daemon.dry_run import dry_run
from tasuki.server.daemon.picture_plan import cpu_pictures
from tasuki.server.daemon.serve_config import DryRunConfig
from tests.harness.picture_answers import FOLDER
from tests.harness.picture_goldens import needs_goldens

pytestmark = needs_goldens


def config_of(folder: Path = FOLDER, **settings: object) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", arena_mib=16, **settings)  # type: ignore[arg-type]


def test_the_bytes_are_those_of_an_engine() -> None:
    config = config_of(picture_rows_mib=3)
    parts = build_parts(config, lambda *_: None, Role.FUSED)
    encoder = build_pictures(config, parts)
    assert parts.tower is not None and encoder is not None
    text = cpu_pictures(config)
    mib = parts.tower.weights.nbytes / 2**20
    assert f"vision tower                  {mib:>10.1f} MiB  2 blocks" in text
    assert f"--picture-rows-mib: {encoder.store.most_tokens} tokens" in text
    assert "of the largest" in text and "3.0 MiB" in text


def test_the_dry_run_names_them_where_a_node_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seen = dry_run(config_of(), DryRunConfig())
    assert "pictures on a CPU, beside weights and arena\nvision tower" in seen
    assert "none, by --vision off" in dry_run(config_of(vision="off"), DryRunConfig())


def test_a_model_of_text_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    shutil.copytree(FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["vision_config"]
    (folder / "config.json").write_text(json.dumps(config))
    assert cpu_pictures(config_of(folder)) == ""


def test_a_folder_without_a_processor_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "blind"
    shutil.copytree(FOLDER, folder)
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").unlink(missing_ok=True)
    assert "none: " in cpu_pictures(config_of(folder))
