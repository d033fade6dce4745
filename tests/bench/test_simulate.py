"""Tests of a fleet in virtual time: the command, its figures, and each route's effect on a small
trace."""

import json
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tasuki.bench.fleet.node_model import fitted, measured
from tasuki.bench.fleet.prefill_nodes import LoadReports
from tasuki.bench.fleet.workload import Workload
from tasuki.bench.replay.trace import load_trace
from tasuki.cli import main as cli
from tasuki.routing.node_load import faded

BLOCK = 64
SESSIONS, TURNS = 24, 6
MEASURED = {"events_per_second", "cpu_seconds", "wall_seconds", "memory_gib"}


def conversations(seed: int) -> list[dict[str, Any]]:
    """Return a trace of sessions with a common prefix; each turn adds some blocks."""
    random = Random(seed)
    rows = []
    for session in range(SESSIONS):
        blocks = list(range(40))
        at = random.randrange(60_000)
        for turn in range(TURNS):
            blocks = [*blocks, *(100_000 * (session + 1) + 1000 * turn + n for n in range(60))]
            rows.append(
                {
                    "timestamp": at,
                    "input_length": len(blocks) * BLOCK,
                    "output_length": 100,
                    "hash_ids": blocks,
                    "session_id": session,
                    "agent": 0,
                    "stop": "tool_use",
                }
            )
            at += random.randrange(4_000, 20_000)
    return sorted(rows, key=lambda row: int(row["timestamp"]))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in conversations(7)))
    return path


def simulated(trace: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["simulate", str(trace), "--gb", "6", "--json", *flags]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_cost_saves_nearly_what_one_cache_does_and_random_does_not(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = {
        route: simulated(trace, capsys, "--route", route)["flops_saved"]
        for route in ("one-cache", "cost", "sticky", "fewest-rooms", "random")
    }
    assert saved["one-cache"] >= saved["cost"] >= saved["one-cache"] - 0.05
    assert saved["random"] < saved["cost"] - 0.2
    assert saved["fewest-rooms"] < saved["cost"] - 0.2
    assert saved["sticky"] > saved["random"]


def test_equal_seeds_give_equal_outcomes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--streams", "3", "--nodes", "6", "--seed", "5")
    first, second = (simulated(trace, capsys, *flags) for _ in range(2))
    for result in (first, second):
        for name in [name for name in result if name in MEASURED or name.startswith("choice_")]:
            result.pop(name)
    assert first == second
    other = simulated(trace, capsys, *flags[:-1], "6")
    assert other["ttft_mean_seconds"] != first["ttft_mean_seconds"]


@pytest.mark.parametrize("arrivals", ["recorded", "closed", "open"])
def test_every_turn_is_answered_however_turns_arrive(
    trace: Path, capsys: pytest.CaptureFixture[str], arrivals: str
) -> None:
    result = simulated(trace, capsys, "--arrivals", arrivals, "--tflops", "30")
    assert result["turns"] == SESSIONS * TURNS
    assert 0 < result["hit_rate"] < 1
    assert 0 < result["ttft_p50_seconds"] <= result["ttft_p95_seconds"]


@pytest.mark.parametrize("route", ["cost", "sticky", "one-cache", "pull"])
@pytest.mark.parametrize("dead", ["0.5", "1"])
def test_turns_of_nodes_that_die_are_asked_again(
    trace: Path, capsys: pytest.CaptureFixture[str], route: str, dead: str
) -> None:
    result = simulated(trace, capsys, "--dead", dead, "--tflops", "3", "--route", route)
    assert result["turns"] == SESSIONS * TURNS
    assert result["asked_again"] > 0
    assert result["lost_turns"] == 0


def test_lost_messages_are_noticed_and_asked_for_again(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = simulated(trace, capsys)
    lossy = simulated(trace, capsys, "--lost", "0.2")
    assert kept["snapshots"] == 0
    assert lossy["snapshots"] > 10
    assert lossy["flops_saved"] > kept["flops_saved"] - 0.1


def test_old_news_cost_no_turn(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(trace, capsys, "--index-seconds", "5", "--report-delay", "5")
    assert result["turns"] == SESSIONS * TURNS
    assert result["lost_turns"] == 0


def test_many_deciders_do_as_well_as_few(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--nodes", "8", "--streams", "4", "--seconds", "120")
    few = simulated(trace, capsys, *flags)
    many = simulated(trace, capsys, *flags, "--deciders", "250")
    assert many["flops_saved"] > few["flops_saved"] - 0.05
    assert many["imbalance"] < 1.5 * few["imbalance"]


def test_pulls_are_a_bound_that_computes_less(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = simulated(trace, capsys, "--route", "pull", "--link-gb", "0.001")
    fast = simulated(trace, capsys, "--route", "pull")
    assert fast["pulled_tokens"] > slow["pulled_tokens"]
    assert fast["lost_turns"] == slow["lost_turns"] == 0


def test_a_node_that_lists_all_as_held_costs_little(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bound the loss: after some misses, the node's list is no longer trusted."""
    honest = simulated(trace, capsys)
    lied_to = simulated(trace, capsys, "--lying", "0.25")
    assert lied_to["flops_saved"] > honest["flops_saved"] - 0.1
    assert lied_to["lost_turns"] == 0 and lied_to["imbalance"] < 3.2


def test_several_seeds_give_means_with_their_intervals(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [simulated(trace, capsys, "--seed", str(seed)) for seed in range(3)]
    mean = simulated(trace, capsys, "--seeds", "3")
    assert mean["seeds"] == 3
    assert mean["flops_saved"] == pytest.approx(sum(run["flops_saved"] for run in runs) / 3)
    assert mean["turns"] == 3 * SESSIONS * TURNS
    assert mean["intervals"]["ttft_mean_seconds"] > 0


def test_a_stream_that_goes_round_asks_every_turn_once(trace: Path) -> None:
    for seed in range(4):
        workload = Workload(load_trace(trace), 3, "recorded", 0.01, seed)
        asked = []
        waiting = list(workload.first_turns())
        while waiting:
            turn = waiting.pop()
            asked.append((turn.stream, turn.index))
            if (following := workload.next_turn(turn, turn.seconds)) is not None:
                assert following[1] >= turn.seconds
                waiting.append(following[0])
        assert sorted(asked) == [(s, n) for s in range(3) for n in range(SESSIONS * TURNS)]


def test_outcomes_are_kept_in_a_file_each_in_its_place(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet.jsonl"
    for route in ("one-cache", "sticky", "sticky"):
        simulated(trace, capsys, "--route", route, "--out", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["route"] for row in rows] == ["one-cache", "sticky"]
    assert rows[0]["host"]["commit"]
    table = out.with_suffix(".md").read_text()
    assert table.count("| sticky |") == 1
    below = 100 * (rows[0]["flops_saved"] - rows[1]["flops_saved"])
    assert f"| {below:.1f} |" in table


def test_a_report_is_as_old_as_it_takes() -> None:
    reports = LoadReports(period=1.0, delay=2.0)
    reports.changed(0.5, 10.0, 3.0)
    assert reports.latest(1.9) == (0.0, 0.0, 0.0)
    assert reports.latest(3.2) == (9.5, 1.0, pytest.approx(faded(3.0, 0.5)))
    reports.changed(3.4, 20.0, 4.0)
    assert reports.latest(5.9) == (7.5, 3.0, pytest.approx(faded(3.0, 2.5)))
    assert reports.latest(6.0) == (pytest.approx(19.4), 4.0, pytest.approx(faded(4.0, 0.6)))


def test_a_large_fleet_is_sampled_and_keeps_its_sessions_together(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = simulated(trace, capsys, "--nodes", "64")
    large = simulated(trace, capsys, "--nodes", "80")
    assert large["flops_saved"] > small["flops_saved"] - 0.05


def test_what_cannot_be_simulated_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["simulate", str(trace), "--nodes", "0"])
    assert "--nodes" in capsys.readouterr().err
    assert cli.main(["simulate", str(trace), "--seconds", "0"]) == 1
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *product(("--lost", "--dead", "--lying"), ("1.5", "-0.1", "nan")),
        *product(("--index-seconds", "--report-delay", "--warm-up"), ("-1", "nan", "inf")),
        *product(("--gb", "--tflops"), ("0", "inf", "nan")),
    ],
)
def test_a_number_that_is_none_of_its_kind_is_refused(
    trace: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    """Expect exit status 2 with the flag and its value named. Without the check, a share above 1 or
    a negative time gave figures all the same."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["simulate", str(trace), flag, value])
    said = capsys.readouterr().err
    assert flag in said and value in said


def test_measured_prefills_are_met_by_what_is_made_of_them(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measurement = measured("Qwen/Qwen3.5-9B")
    assert measurement is not None
    seconds = fitted(measurement.prefills)
    for prefill in measurement.prefills:
        assert seconds.between(prefill.first, prefill.last) == pytest.approx(
            prefill.seconds, rel=0.05
        )
    assert min(seconds.fixed, seconds.token, seconds.context) > 0
    as_measured = simulated(trace, capsys, "--model", "9b")
    assert as_measured["prefill_source"].startswith("measured: NVIDIA H200")
    assert as_measured["tflops"] is None
    assumed = simulated(trace, capsys, "--model", "9b", "--tflops", "100")
    assert assumed["ttft_mean_seconds"] > as_measured["ttft_mean_seconds"]
    assert simulated(trace, capsys)["tflops"] == 300.0
