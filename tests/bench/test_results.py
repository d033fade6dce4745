"""Runs of a topic are lines of one file, with a page of sections beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasuki.bench.measure.report import Row, reported
from tasuki.bench.measure.results import Document, RunFile, Section
from tasuki.cli import main as cli

RESULTS = Path(__file__).parents[2] / "docs" / "results"
OWN_MAKERS = {"cache", "gateway", "fleet_replay", "mutation", "picture_states", "planner"}
"""Topics with pages not made by `tasuki bench page`, or without pages."""


def described(document: Document) -> Section:
    return Section("a bench", f"figure {document['figure']}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(out: str, name: str, figure: int) -> None:
    RunFile.of(out, name).keep({"figure": figure}, described)


def test_a_run_without_a_name_is_added_and_one_with_a_name_takes_its_place(tmp_path: Path) -> None:
    topic = tmp_path / "new" / "topic.jsonl"
    for figure in (1, 2):
        keep(str(topic), "today", figure)
    for figure in (3, 4):
        keep(f"{topic}#named", "today", figure)
    keep(f"{topic}#today", "other", 5)
    found = [(run["run"], run["figure"]) for run in lines(topic)]
    assert found == [("today", 5), ("today (2)", 2), ("named", 4)]
    page = topic.with_suffix(".md").read_text()
    assert page.startswith("# topic\n")
    assert "## named\n\na bench. figure 4\n" in page and "figure 3" not in page


def test_what_is_above_the_runs_of_a_page_stays(tmp_path: Path) -> None:
    topic = tmp_path / "topic.jsonl"
    keep(f"{topic}#a", "", 1)
    page = topic.with_suffix(".md")
    page.write_text(page.read_text().replace("# topic", "# By hand\n\n## a table of mine"))
    keep(f"{topic}#b", "", 2)
    assert page.read_text().startswith("# By hand\n\n## a table of mine\n\n<!-- runs -->\n\n## a")


def test_a_run_in_a_file_of_its_own_is_all_that_is_in_it(tmp_path: Path) -> None:
    single = tmp_path / "run.json"
    for figure in (1, 2):
        keep(str(single), "today", figure)
    assert json.loads(single.read_text()) == {"figure": 2}
    assert single.with_suffix(".md").read_text() == "# a bench\n\nfigure 2\n"


def test_a_bench_that_goes_on_writes_one_line(tmp_path: Path) -> None:
    topic = tmp_path / "decode.jsonl"
    for _ in range(2):
        report = reported("decode", torch.device("cpu"), torch.float32, "abc", str(topic))
        for seconds in (0.5, 0.25):
            report.add(Row("a step", seconds))
    first, second = lines(topic)
    assert [row["seconds"] for row in second["rows"]] == [0.5, 0.25]
    assert second["run"] == f"{first['run']} (2)" and "abc" in first["run"]
    assert topic.with_suffix(".md").read_text().count("| a step | 250.00 ms |") == 2


def test_a_run_s_own_file_becomes_a_line_and_a_line_a_file(tmp_path: Path) -> None:
    single, topic = tmp_path / "fast.json", tmp_path / "decode.jsonl"
    report = reported("decode", torch.device("cpu"), torch.float32, "abc", str(single))
    report.add(Row("a step", 0.5, floor=0.25))
    assert cli.main(["bench", "page", str(topic), "--add", str(single)]) == 0
    assert cli.main(["bench", "page", str(topic), "--add", f"slow={single}"]) == 0
    assert [run["run"] for run in lines(topic)] == ["fast", "slow"]
    assert "## fast\n\ndecode. " in topic.with_suffix(".md").read_text()
    assert cli.main(["bench", "page", str(topic), "--split", str(tmp_path / "apart")]) == 0
    assert (tmp_path / "apart" / "decode_fast.json").read_text() == single.read_text()


def test_a_file_without_runs_has_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "page", str(tmp_path / "none.jsonl")]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_the_pages_of_the_repository_are_those_of_their_runs(tmp_path: Path) -> None:
    topics = [path for path in RESULTS.glob("*.jsonl") if path.stem not in OWN_MAKERS]
    assert len(topics) > 10
    stale = []
    for path in topics:
        copy, page = tmp_path / path.name, path.with_suffix(".md").read_text()
        copy.write_text(path.read_text())
        copy.with_suffix(".md").write_text(page)
        assert cli.main(["bench", "page", str(copy)]) == 0
        stale += [path.name] if copy.with_suffix(".md").read_text() != page else []
    assert not stale


def test_a_run_of_a_bench_without_a_page_is_refused(tmp_path: Path) -> None:
    single = tmp_path / "run.json"
    single.write_text(json.dumps({"bench": "gateway"}))
    assert cli.main(["bench", "page", str(tmp_path / "gateway.jsonl"), "--add", str(single)]) == 1
