"""Recorded runs of agents on GPUs beside the simulator: the workload is the bench's own, and the
tokens found in the cache are the recorded ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.fleet_hardware.__main__ import main
from scripts.fleet_hardware.agents_trace import agents_trace
from scripts.fleet_hardware.comparison import (
    compare,
    tokens_behind_answers,
    tokens_not_returned,
)
from scripts.fleet_hardware.record import read_record
from tasuki.bench.errors import BenchError
from tasuki.bench.fleet.workload import Workload
from tasuki.bench.load.client.loads import Agents
from tasuki.cli import main as cli

RUNS = Path(__file__).parents[2] / "docs" / "results" / "serving_gpu.jsonl"
AGENTS = Agents(sessions=3, turns=3, prefix=60, turn=35, answer=15, seed="a")
WARM = 2
HIT_POINTS = 0.02
"""Of a pair, behind what answers that did not come back take: which ones they were is not
recorded."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each recorded run."""
    folder = tmp_path_factory.mktemp("recorded")
    assert cli.main(["bench", "page", str(RUNS), "--split", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def workload() -> Workload:
    trace, _ = agents_trace(AGENTS, WARM, vocabulary=1000)
    return Workload(trace, 1, "closed", 0.01, 0)


def test_prompts_part_where_the_benchs_do(workload: Workload) -> None:
    requests = workload.trace.requests
    assert workload.trace.block_tokens == 5
    assert [each.prompt_tokens for each in requests] == [95, 95, *[95, 145, 195] * 3]
    assert [each.answer_tokens for each in requests] == [4, 4, *[15] * 9]
    begins = [workload.tokens(turn) for turn in workload.first_turns()]
    assert len(begins) == WARM + AGENTS.sessions
    for number, one in enumerate(begins):
        for other in begins[:number]:
            assert np.array_equal(one[:60], other[:60])
            assert not set(one[60:].tolist()) & set(other[60:].tolist())


def test_a_turn_continues_the_answer_as_soon_as_it_has_ended(workload: Workload) -> None:
    _, begin = agents_trace(AGENTS, WARM, vocabulary=1000)
    for turn in workload.first_turns():
        warms = workload.request(turn).answer_tokens == 4
        assert (turn.seconds < begin) == warms
        following = workload.next_turn(turn, ended=begin + 7.5)
        if warms:
            assert following is None
            continue
        assert following is not None and following[1] == begin + 7.5
        whole = workload.tokens(turn)
        assert len(whole) == 95 + 15
        assert np.array_equal(whole, workload.prompt(following[0])[:110])


@pytest.mark.parametrize("name", ["agents1", "agents32", "agents128"])
def test_a_recorded_node_found_exactly_what_the_simulated_one_finds(
    name: str, recorded: Path
) -> None:
    row = compare(read_record(recorded / f"serving_gpu_{name}.json"))
    assert row["simulated"]["cached_tokens"] == row["cached_tokens"]
    assert "ttft_apart" not in row


@pytest.mark.parametrize("name", ["pair_agents1", "pair_agents32", "pair_agents128_5ms"])
def test_a_recorded_pair_found_what_is_simulated_but_for_answers_not_pulled(
    name: str, recorded: Path
) -> None:
    row = compare(read_record(recorded / f"serving_gpu_{name}.json"))
    assert row["pulls"] < row["continued_turns"]
    assert row["points_apart"] > 10 * HIT_POINTS, "else the bound says nothing"
    assert abs(row["points_left"]) < HIT_POINTS


@pytest.mark.parametrize("name", ["pair_agents64", "pair_agents128"])
def test_a_recorded_pair_that_pulled_nearly_all_answers_found_what_is_simulated(
    name: str, recorded: Path
) -> None:
    row = compare(read_record(recorded / f"serving_gpu_{name}.json"))
    assert 0.9 * row["continued_turns"] < row["pulls"] < row["continued_turns"]
    assert abs(row["points_left"]) < HIT_POINTS


def test_no_answer_counts_as_missing_where_all_came_back() -> None:
    # Prompts of 95 and 145 tokens end pages at 64 and 128: 109 - 64 and 159 - 128 for each session.
    assert tokens_behind_answers(AGENTS) == 3 * (45 + 31)
    assert tokens_not_returned(AGENTS, returned=6) == 0
    assert tokens_not_returned(AGENTS, returned=0) == 228


@pytest.mark.parametrize(
    "change",
    [
        {"requests": 5, "whole": 5},
        {"whole": 5},
        {"ttft_ms": {"p50": None, "p95": None, "p99": None}},
        {"settings": {"free_model": True}},
        {"settings": {"pair": False}},
        {"settings": {"prefill_flags": "", "node_flags": ""}},
        {"settings": {"model": "0.8b"}},
        {"host": {"device": "NVIDIA H100"}},
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(
    change: dict[str, object], recorded: Path, tmp_path: Path
) -> None:
    document = json.loads((recorded / "serving_gpu_pair_agents1.json").read_text())
    for name, value in change.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BenchError, match="changed"):
        compare(read_record(path))


def test_the_command_writes_rows_and_a_page_that_marks_large_errors(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [recorded / f"serving_gpu_{name}.json" for name in ("pair_agents1", "agents1")]
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["fleet_hardware", *map(str, files), "--out", str(out)])
    assert main() == 0
    alone, pair = json.loads(out.read_text())["rows"]
    assert (alone["commit"], pair["commit"]) == ("0b96341162ff", "86fb508e258d")
    page = out.with_suffix(".md").read_text()
    assert "+1.80 | 0 of 5 | +1.80 | +0.00 |" in page
    assert f"{pair['ttft']['p50']:.3f} / " in page
    assert f"**{100 * pair['ttft_apart']['p50']:+.0f}%**" in page
    monkeypatch.setattr("sys.argv", ["fleet_hardware", str(tmp_path / "none.json")])
    assert main() == 1
