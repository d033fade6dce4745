"""Tests of `tasuki bench tiers` on a tiny model on the CPU: its measurements and output, not its
speed."""

import json
from pathlib import Path

from tasuki.cli import main as cli
from tests.harness.engines import TINY

FLAGS = [
    *("--device", "cpu", "--dtype", "float32", "--session-tokens", "500", "--suffix-tokens", "40"),
    *("--repeats", "2", "--gb-a-second", "0.0001", "--steps", "3", "--answers", "2"),
]


def test_returns_are_loaded_and_computed_behind(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    out = tmp_path / "out.json"
    assert cli.main(["bench", "tiers", *FLAGS, "--model", str(tmp_path), "--out", str(out)]) == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert len(rows) == 6
    returned = rows["first token of 40 tokens behind 500 from below"]
    assert returned["extra"]["loaded whole"] == 4 == returned["extra"]["returns"]
    assert returned["extra"]["computed behind a load"] == 4
    assert returned["seconds"] > 0
