"""Tests of `python bench/cache/picture_states.py`: rules for states beside pictures, compared."""

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/cache/picture_states.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "bench/cache"))
    return runpy.run_path(str(SCRIPT))


def test_the_run_is_kept_with_a_table(
    script: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["picture_states.py", "--output", str(tmp_path)])
    few = script["Questions"](8, 4, at_once=3)
    script["main"].__globals__["QUESTIONS"] = {"few": few}
    script["main"]()
    (run,) = map(json.loads, (tmp_path / "picture_states.jsonl").read_text().splitlines())
    rules = run["results"]["few"]["whole"]
    plain, ours = rules["no tails"], rules["engine"]
    assert plain["prompt"] == ours["prompt"] and ours["hit"] > plain["hit"]
    # One encode for each picture, and not one more state.
    assert ours["encodes"] == 8 and ours["states"] <= plain["states"]
    assert "| few | whole | engine |" in (tmp_path / "picture_states.md").read_text()


def test_the_engine_keeps_for_text_no_other_state(script: Mapping[str, Any]) -> None:
    text = script["Questions"](6, 3, pages=0, words=(90, 400), at_once=3, grows=False, thinks=True)
    slabs = script["slabs_of"](text)
    played = [script["play"](text, script["RULES"][name], slabs) for name in ("no tails", "engine")]
    assert played[0] == played[1] and played[0].states > 0
