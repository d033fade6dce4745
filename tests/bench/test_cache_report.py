"""Tests of `python bench/cache/main.py` with given measurements."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {"match 65536, ns/token": 0.1}


def test_what_was_measured_is_kept_as_a_run_a_table_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench/cache"))
    monkeypatch.setattr(sys, "argv", ["main.py", "--output", str(tmp_path)])
    script = runpy.run_path(str(ROOT / "bench/cache/main.py"))
    main = script["main"]
    main.__globals__.update(PEERS=(), measure=lambda arguments: ROWS)
    main()
    (run,) = map(json.loads, (tmp_path / "cache.jsonl").read_text().splitlines())
    assert run["results"] == {"tasuki": ROWS} and run["host"]["commit"]
    table = (tmp_path / "cache.md").read_text()
    assert "| match 65536, ns/token | 0.10 | <= 0.5: met |" in table
    assert "| match 65536, ns/token | 0.10 |" in capsys.readouterr().out
    assert (tmp_path / "cache.svg").read_text().startswith("<svg")
