"""Tests of `tasuki bench` on a tiny model on the CPU: its counts and output, not its speed."""

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure import report
from tasuki.bench.measure.draft_turns import DraftedTurns, DraftPair, Turn, TurnLimit, Turns
from tasuki.bench.measure.floors import Floors, ModelFloor, measure_floors
from tasuki.bench.measure.gpu_timeline import KernelTime, Work, gaps, kernel_times
from tasuki.bench.measure.report import Row, as_line, reported
from tasuki.bench.measure.scripted_drafts import Script, ScriptedSpeculation, known_answer
from tasuki.bench.measure.timing import turn_seconds
from tasuki.bench.workload import Point
from tasuki.cli import main as cli
from tasuki.engine.config import EngineConfig
from tasuki.engine.speculation.draft_limit import FixedLimit, StepShape
from tasuki.model.config import DeltaNetConfig
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import TINY, submit
from tests.harness.model_shapes import MOE
from tests.harness.qwen35 import config_of, published_or_folder

TINY_FLAGS = ["--device", "cpu", "--dtype", "float32", "--arena-mib", "16"]


measured_once = cache(measure_floors)


@pytest.fixture(autouse=True)
def floors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the floors once. All benches of one device and type share them, and they take most of
    a tiny bench."""
    monkeypatch.setattr(report, "measure_floors", measured_once)


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return [*TINY_FLAGS, "--model", str(tmp_path)]


def run(out: Path, *flags: str) -> dict[str, Any]:
    assert cli.main(["bench", *flags, "--out", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def copy_rate(document: dict[str, Any]) -> float:
    rate: float = document["floors"]["copy_bandwidth"]
    return rate


def test_a_row_is_written_as_soon_as_it_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    report = reported("decode", torch.device("cpu"), torch.float32, "abc", str(out))
    report.add(Row("a step", 0.5, floor=0.25))
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["share"]) == ("a step", 0.5)
    report.note("a remark")
    assert "a remark" in out.with_suffix(".md").read_text()


def test_a_decode_bench_writes_its_host_floors_and_points(tmp_path: Path, tiny: list[str]) -> None:
    points = ["--points", "1x100,3x70", "--steps", "3", "--warmup-steps", "1"]
    document = run(tmp_path / "out.json", "decode", *tiny, *points, "--commit", "abc")
    assert document["host"]["commit"] == "abc"
    assert document["host"]["versions"]["torch"] == torch.__version__
    assert document["floors"]["copy_bandwidth"] > 1e8
    assert [row["name"] for row in document["rows"]] == [
        "step of 1 x 100 tokens",
        "step of 3 x 70 tokens",
    ]
    for row in document["rows"]:
        assert row["share"] == pytest.approx(row["floor"] / row["seconds"])
        assert 0 < row["floor"] < row["seconds"]


def test_steps_of_ranks_stand_beside_those_of_one(tmp_path: Path, tiny: list[str]) -> None:
    flags = ["--points", "2x70", "--steps", "2", "--warmup-steps", "1", "--tensor-parallel", "2"]
    one, two = run(tmp_path / "out.json", "decode", *tiny, *flags)["rows"]
    assert two["name"] == f"2 ranks: {one['name']}"
    assert two["others"] == {"one rank": one["seconds"]}
    assert two["extra"]["times one rank"] == pytest.approx(one["seconds"] / two["seconds"])
    # Each rank has half of the weights, and half of each request's state and keys.
    assert 0.45 < two["floor"] / one["floor"] < 0.7


def test_what_is_not_measured_of_ranks_is_refused(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (
        ["decode", *tiny, "--draft-layer", "auto"],
        ["decode", *tiny, "--constrained", "0.5", "--budgets"],
        ["prefill", *tiny, "--draft-layer", "auto"],
        ["transfer", *tiny],
        ["transfer", *tiny, "--parts", "goodput"],
    ):
        assert cli.main(["bench", *flags, "--tensor-parallel", "2"]) != 0
        assert "tensor_parallel is measured " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        ([], "kernels are of a GPU"),
        (["--draft-layer", "auto"], "draft_layer auto measures neither"),
    ],
)
def test_kernels_that_are_not_seen_are_refused(
    tiny: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], refusal: str
) -> None:
    with suppress(SystemExit):
        assert cli.main(["bench", "decode", *tiny, "--kernels", *flags]) != 0
    assert refusal in capsys.readouterr().err


def test_kernels_of_prompts_are_not_seen_on_a_cpu(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "prefill", *tiny, "--kernels"]) != 0
    assert "kernels are of a GPU" in capsys.readouterr().err


def test_steps_with_thinking_budgets_stand_beside_steps_without(
    tmp_path: Path, tiny: list[str]
) -> None:
    flags = ["--points", "2x64", "--steps", "4", "--warmup-steps", "2", "--budgets"]
    rows = run(tmp_path / "out.json", "decode", *tiny, *flags)["rows"]
    budgets = [row for row in rows if "thinking budget" in row["name"] or "thought" in row["name"]]
    assert len(budgets) == 3
    assert all(row["extra"]["times the step without"] > 0 for row in budgets)


@pytest.mark.slow
def test_nodes_of_one_and_of_two_ranks_hand_over(tmp_path: Path, tiny: list[str]) -> None:
    flags = ["--parts", "nodes", "--tensor-parallel", "2", "--prompt", "150", "--repeats", "1"]
    rows = run(tmp_path / "out.json", "transfer", *tiny, *flags)["rows"]
    assert [row["name"].split(", ")[1] for row in rows] == ["2 ranks to 1", "1 ranks to 2"]
    for row in rows:
        assert row["extra"]["handed over"] == 1 and row["seconds"] >= 0


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="two GPUs are here")
def test_collectives_need_a_gpu_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "collectives"]) != 0
    assert "2 ranks need as many GPUs, and" in capsys.readouterr().err


def test_a_decode_bench_has_a_draft_layer_and_none_take_turns(
    tmp_path: Path, tiny: list[str]
) -> None:
    points = ["--points", "2x100", "--steps", "9", "--warmup-steps", "1", "--draft-layer", "auto"]
    off, kept = run(tmp_path / "out.json", "decode", *tiny, *points)["rows"]
    assert [off["name"], kept["name"]] == [
        "step of 2 x 100 tokens",
        "step of 2 x 100 tokens, with a draft layer",
    ]
    assert kept["others"] == {"without": off["seconds"]}
    assert kept["floor"] > off["floor"]
    assert kept["met"] is (kept["extra"]["slower %"] <= 1)


_FP8 = ["--quantization", "fp8", "--kv-dtype", "fp8", "--alone"]


@pytest.mark.parametrize(
    ("drafter", "form", "named"),
    [("mtp", _FP8, "fp8, fp8 KV: "), ("prediction", [], ""), ("tree", [], "")],
)
def test_a_decode_bench_has_drafts_that_hold_as_scripted_and_none_take_turns(
    tmp_path: Path, tiny: list[str], drafter: str, form: list[str], named: str
) -> None:
    points = ["--points", "2x70", "--steps", "8", "--warmup-steps", "2"]
    asked = ["--speculate", drafter, "--draft-tokens", "4", "--accept", "1/1/0/1", *form]
    document = run(tmp_path / "out.json", "decode", *tiny, *points, *asked)
    plain, drafted, measured = document["rows"]
    assert plain["name"] == f"{named}step of 2 x 70 tokens"
    assert measured["name"] == f"{named}step of 2 x 70 tokens, drafts as they gain"
    assert measured["others"] == drafted["others"]
    assert 0 <= measured["extra"]["drafts a step"] <= 4
    # A form has targets only beside plain rows.
    held = None if form else measured["extra"]["times the tokens/s without"] >= 0.99
    assert measured["met"] is held
    assert drafted["name"] == f"{named}step of 2 x 70 tokens, 4 drafts"
    assert drafted["others"] == {"without": plain["seconds"]}
    assert drafted["extra"]["tokens a step and answer"] == drafted["extra"]["scripted"] == 3
    assert drafted["met"] is None
    assert any("scripted, at 1.00/1.00/0.00/1.00" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (["--accept", ".8/x"], "how likely drafts hold"),
        (["--accept", "1.5"], "how likely drafts hold"),
        (["--draft-tokens", "0"], "draft_tokens must be at least 1"),
        (["--constrained", "0.5"], "measures neither constrained"),
    ],
)
def test_drafts_that_cannot_be_scripted_are_refused(
    tiny: list[str], capsys: pytest.CaptureFixture[str], asked: list[str], refusal: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "decode", *tiny, "--speculate", "tree", *asked])
    assert refusal in capsys.readouterr().err


def test_a_script_holds_as_often_as_it_says() -> None:
    script = Script.parse(".80/.75/.72", 3)
    assert script.reached == pytest.approx([0.8, 0.6, 0.432])
    assert script.tokens == pytest.approx(2.832)
    assert Script.parse(".5", 3).likely == (0.5, 0.5, 0.5)
    answer = np.array([0, 5, 0, 7], dtype=np.int32)
    config = EngineConfig(speculate="prediction")
    drafting = ScriptedSpeculation(script, config, lambda message: answer).drafting(
        submit("r", [1, 2], 8)
    )
    assert drafting is not None
    drafts = [drafting.propose([0], 3) for _ in range(1000)]
    for most, part in enumerate(script.reached, 1):
        held = sum(row[:most] == (5, 0, 7)[:most] for row in drafts)
        assert held / 1000 == pytest.approx(part, abs=0.005)
    with pytest.raises(BenchError, match="token 0 of an answer is 3, and the noise draws 0"):
        drafting.propose([3], 3)


@pytest.mark.parametrize("model", [config_of(TINY), MOE])
def test_what_the_noise_draws_is_known_before_a_model_of_no_logits_draws_it(
    model: DeltaNetConfig,
) -> None:
    config = EngineConfig(arena_mib=16, dtype="float32", speculate="mtp", draft_tokens=3)
    model = replace(model, draft_layers=1)
    turns = DraftedTurns(model, config, Script.parse("1", 3))
    answer = turns.rig.submit(turns.rig.prompt(70), 40, temperature=1.0)
    turns.rig.run()
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=0)
    known = known_answer(sampling, 70, model.vocab, torch.float32, torch.device("cpu"))
    assert answer.tokens == known.tolist()
    assert len(set(answer.tokens)) > 20


def test_a_node_that_finds_how_many_learns_from_its_own_turns() -> None:
    seen: list[tuple[int, int]] = []

    class Noted(FixedLimit):
        def completed(
            self, shape: StepShape, tokens: int, seconds: float, *, planned: bool
        ) -> None:
            seen.append((shape.drafted, tokens))

    limit = TurnLimit(3, Noted(2))
    for turn, drafts in ((Turn.OFF, 0), (Turn.MOST, 3), (Turn.MEASURED, 2)):
        limit.turn = turn
        assert limit.next(1, []) == drafts
        for drafted in (0, 1):
            shape = StepShape(1 - drafted, drafted, 1 + 2 * drafted)
            limit.completed(shape, len(seen), 0.1, planned=False)
    assert seen == [(0, 0), (0, 1), (1, 2)]
    assert limit.drafts == [0, 2]


def test_a_prefill_bench_has_a_draft_layer_and_none_take_turns(
    tmp_path: Path, tiny: list[str]
) -> None:
    lengths = ["--prompts", "70", "--repeats", "3", "--draft-layer", "auto"]
    off, kept = run(tmp_path / "out.json", "prefill", *tiny, *lengths)["rows"]
    assert kept["name"] == f"{off['name']}, with a draft layer"
    assert kept["others"] == {"without": off["seconds"]}
    assert kept["met"] is (kept["extra"]["slower %"] <= 1.5)


def test_a_pair_has_one_set_of_weights_and_the_same_answers() -> None:
    config = EngineConfig(arena_mib=16, dtype="float32")
    pair = DraftPair.of(config_of(TINY), config)
    kept, off = (rig.parts for rig in (pair.kept, pair.off))
    assert kept.layout.draft_layers == 1 and off.layout.draft_layers == 0
    assert kept.model.weights.layers is off.model.weights.layers
    rigs = (pair.kept, pair.off)
    answers = [rig.submit(rig.prompt(70), 60) for rig in rigs]
    for rig, answer in zip(rigs, answers, strict=True):
        rig.run_until_tokens([answer], 1)
    pair.decode(([answers[0]], [answers[1]]), 9, 1)
    counts = [len(answer.tokens) for answer in answers]
    assert min(counts) == max(counts) >= 2 * (8 + 3) and kept.arena.views("carry")[0].any()
    assert answers[0].tokens == answers[1].tokens


def test_two_engines_are_compared_by_the_turns_that_they_took() -> None:
    # A clock at half speed moves both halves of a turn.
    turns = Turns([[1.0, 1.1, 9.0], [2.2, 2.2, 2.2]], [[1.0, 1.0, 1.0], [2.0, 7.0, 2.0]])
    assert turns.ratio == pytest.approx(1.1)


def test_a_bench_measures_a_format_beside_plain_weights(tmp_path: Path, tiny: list[str]) -> None:
    flags = [*tiny, "--quantization", "fp8"]
    steps = ["--points", "2x70", "--steps", "3", "--warmup-steps", "1"]
    plain, fp8 = run(tmp_path / "out.json", "decode", *flags, *steps)["rows"]
    assert fp8["name"] == f"fp8: {plain['name']}"
    assert fp8["others"] == {"plain": plain["seconds"]}
    assert 0.2 < fp8["floor"] / plain["floor"] < 1
    prompts = ["--prompts", "20", "--repeats", "1"]
    plain, fp8 = run(tmp_path / "out.json", "prefill", *flags, *prompts)["rows"]
    assert fp8["others"] == {"plain": plain["seconds"]}


def test_a_bench_measures_fp8_rows_beside_plain_ones_and_alone(
    tmp_path: Path, tiny: list[str]
) -> None:
    flags = [*tiny, "--kv-dtype", "fp8"]
    steps = ["--points", "2x270", "--steps", "3", "--warmup-steps", "1"]
    document = run(tmp_path / "out.json", "decode", *flags, *steps)
    plain, fp8 = document["rows"]
    assert fp8["name"] == f"fp8 KV: {plain['name']}"
    assert fp8["others"] == {"plain": plain["seconds"]}
    assert fp8["floor"] < plain["floor"]
    both = [*flags, "--quantization", "fp8", "--alone"]
    alone = run(tmp_path / "out.json", "decode", *both, *steps)
    (row,) = alone["rows"]
    assert row["name"] == f"fp8, fp8 KV: {plain['name']}" and row["others"] == {}
    # Compare bytes, since two runs measure two copy rates.
    assert row["floor"] * copy_rate(alone) < fp8["floor"] * copy_rate(document)


def test_a_bench_writes_the_same_rows_as_a_table(tmp_path: Path, tiny: list[str]) -> None:
    run(tmp_path / "out.json", "prefill", *tiny, "--prompts", "20,30", "--repeats", "1")
    table = (tmp_path / "out.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table[-2:]] == [
        "| prompt of 20 tokens, to its first token",
        "| prompt of 30 tokens, to its first token",
    ]
    assert {line.count("|") for line in table[4:]} == {8}


def test_a_prefill_bench_measures_each_length(tmp_path: Path, tiny: list[str]) -> None:
    lengths = ["--prompts", "40,700", "--repeats", "2", "--prefill-chunk-tokens", "256"]
    short, long = run(tmp_path / "out.json", "prefill", *tiny, *lengths)["rows"]
    assert 0 < short["floor"] < long["floor"] < long["seconds"]


def test_an_agentic_bench_reuses_what_was_said_before(tmp_path: Path, tiny: list[str]) -> None:
    size = ["--first-turn", "200", "--turn", "30", "--turns", "3", "--answer", "6"]
    document = run(
        tmp_path / "out.json", "agentic", *tiny, *size, "--sessions", "2", "--short-answer", "4"
    )
    rows = {row["name"]: row for row in document["rows"]}
    added = rows["first token: 200 cached, +30 new"]
    # The answer's last token is sampled but not forwarded.
    assert added["extra"]["reused"] == 200 + 4 - 1
    assert rows["2 sessions, 3 turns: first token of a later turn"]["met"] is True
    assert "2 sessions, 3 turns: a token" in rows


def floor_of(model: str) -> ModelFloor:
    """Return the model's floor on an H200."""
    config = published_or_folder(model)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    return ModelFloor.of(config, layout, Floors(4.26e12, 686e12))


@pytest.mark.parametrize(
    ("model", "batch", "context", "milliseconds"),
    [
        ("9b", 1, 50_000, 4.1),
        ("9b", 16, 8_192, 5.1),
        ("9b", 64, 8_192, 9.3),
        ("35b-a3b", 1, 50_000, 1.65),
    ],
)
def test_floors_of_decode_are_the_known_ones(
    model: str, batch: int, context: int, milliseconds: float
) -> None:
    assert 1e3 * floor_of(model).decode(batch, context) == pytest.approx(milliseconds, rel=0.015)


def test_the_floor_of_a_long_prefill_is_the_known_one_and_a_short_one_moves_the_weights() -> None:
    floor = floor_of("9b")
    assert floor.prefill(50_000) == pytest.approx(1.26, rel=0.01)
    assert floor.prefill(1) == pytest.approx(15.9e9 / 4.26e12, rel=0.02)
    assert floor.prefill(800, cached=50_000) > floor.prefill(800)


def test_floors_are_measured_on_the_device_that_is_asked() -> None:
    floors = measure_floors(torch.device("cpu"), torch.float32)
    assert floors.of_bytes(floors.copy_bandwidth) == pytest.approx(1)
    assert floors.matmul_rate > 1e8


def test_turns_share_their_time() -> None:
    calls: list[int] = []
    turns = [lambda: calls.append(1), lambda: calls.append(2)]
    assert turn_seconds(turns, torch.device("cpu"), repeats=2) >= 0
    assert calls[:2] == [1, 2] and calls.count(1) == calls.count(2)


def test_a_row_shows_share_comparison_and_verdict() -> None:
    row = Row("copy", 2e-3, 1e-3, target=">= 85%", met=False, others={"eager": 6e-3})
    line = as_line(row)
    for word in ("copy", "2.00 ms", "1.00 ms", "50%", "eager 3.00x", ">= 85%: MISSED"):
        assert word in line
    assert Row("idle", 1e-6).share is None


def test_gaps_are_where_no_piece_of_work_runs() -> None:
    spans = [(5.0, 6.0), (0.0, 1.0), (0.5, 2.0), (2.0, 3.0), (3.5, 4.0)]
    work = [Work("kernel", begin, end) for begin, end in spans]
    assert gaps(work) == [0.5, 1.0]
    assert gaps([]) == []


def test_time_is_counted_by_kernel_whatever_it_is_compiled_for() -> None:
    work = [
        Work("void at::copy<float, 4>(float*)", 0.0, 1.0),
        Work("_gdn_verify_kernel", 0.5, 4.5),
        Work("void at::copy<c10::BFloat16, 4>(int)", 4.5, 5.5),
        Work("Memcpy HtoD (Pinned -> Device)", 6.0, 6.5),
    ]
    assert kernel_times(work, 2) == [
        KernelTime("_gdn_verify_kernel", 1.75, 0.5),
        KernelTime("at::copy", 1.0, 1.0),
        KernelTime("Memcpy", 0.25, 0.5),
    ]


def test_a_point_is_batch_by_context() -> None:
    assert Point.parse("16x8192") == Point(16, 8192)
    with pytest.raises(ValueError, match="BATCHxCONTEXT"):
        Point.parse("16")


def test_the_command_names_its_benches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 2
    assert "agentic" in capsys.readouterr().err
    assert cli.main(["bench", "--help"]) == 0
    assert "prefill" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_kernels_are_timed_on_a_gpu_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "kernels"]) == 1
    assert "no GPU is here" in capsys.readouterr().err
