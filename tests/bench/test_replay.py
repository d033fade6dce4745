"""Traces through the real tree: formats, tokens from block ids, the command, its sums."""

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.bench.errors import ReplayError
from tasuki.bench.replay.prompts import Prompts
from tasuki.bench.replay.replay import replay, replay_tiers
from tasuki.bench.replay.tiers import Tiers
from tasuki.bench.replay.trace import load_trace
from tasuki.cli import main as cli
from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.model.families.qwen3_5.costs import prefill_flops
from tasuki.model.families.qwen3_5.published import PUBLISHED
from tests.harness.programs import program
from tests.harness.qwen35 import published_or_folder


def line(time_ms: int, tokens: int, answer: int, blocks: list[int], **more: Any) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": tokens,
        "output_length": answer,
        "hash_ids": blocks,
        **more,
    }


# A conversation of three turns and an unrelated request, in blocks of 64.
LINES = [
    line(0, 200, 30, [0, 1, 2, 3], session_id=1, agent=0, stop="tool_use"),
    line(5, 6400, 10, list(range(500, 600)), session_id=2, agent=0, stop="end_turn"),
    line(900, 330, 20, [0, 1, 2, 4, 5, 6], session_id=1, agent=0, stop="end_turn"),
    line(1900, 420, 20, [0, 1, 2, 4, 5, 7, 8], session_id=1, agent=0, stop=""),
]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in LINES))
    return path


def test_an_answer_is_read_from_the_request_that_continues_it(trace_file: Path) -> None:
    trace = load_trace(trace_file)
    prompts = Prompts(trace)
    assert trace.block_tokens == 64
    assert prompts.recovered_answers == 2
    first, stranger, second, third = (prompts.tokens(index) for index in range(4))
    assert [len(each) for each in (first, stranger, second, third)] == [230, 6410, 350, 440]
    assert np.array_equal(first, second[:230])
    assert np.array_equal(second, third[:350])
    assert len({*first.tolist()} & {*stranger.tolist()}) == 0
    assert len(set(third.tolist())) == 440


def test_gzip_and_plain_read_alike(trace_file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.jsonl.gz"
    packed.write_bytes(gzip.compress(trace_file.read_bytes()))
    plain, unpacked = load_trace(trace_file), load_trace(packed)
    assert [r.block_ids.tolist() for r in plain.requests] == [
        r.block_ids.tolist() for r in unpacked.requests
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "holds no request"),
        *((text, ":1: is no request") for text in ("{}\n", "[1]\n", "[" * 100_000)),
    ],
)
def test_a_bad_trace_is_named_with_its_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ReplayError, match=told):
        load_trace(path)


@pytest.mark.parametrize("number", [2**63, 10**30])
def test_an_id_that_is_too_large_is_named_with_its_line(tmp_path: Path, number: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(line(0, 512, 3, [1, number])))
    with pytest.raises(ReplayError, match=r"bad\.jsonl:1: hash_ids has .* number the blocks"):
        load_trace(path)


@pytest.mark.parametrize(
    "more",
    [{"timestamp": 1e999}, {"session_id": ["a"]}, {"agent": {}}],
    ids=str,
)
def test_an_odd_value_is_named_with_its_line(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({**line(0, 512, 3, [1]), "session_id": "s", **more}))
    with pytest.raises(ReplayError, match=r"bad\.jsonl:1: is no request"):
        load_trace(path)


def test_a_file_that_is_no_whole_trace_is_refused(trace_file: Path, tmp_path: Path) -> None:
    """Refuse the whole file: a missing end would go unnoticed in a replay."""
    content = trace_file.read_bytes() + b" " * 5000
    zstd = [program("zstd", "apt-get install zstd"), "-qc"]
    packed = subprocess.run(zstd, input=content, capture_output=True, check=True).stdout
    for name, cut in (
        ("binary.jsonl", b"\x84\xec\n"),
        ("cut.jsonl.gz", gzip.compress(content)[:-20]),
        ("broken.jsonl.gz", gzip.compress(content)[:12] + b"\xff" * 99),
        ("cut.jsonl.zst", packed[:-3]),
        ("none.jsonl.zst", b"\x84\xec\n"),
    ):
        path = tmp_path / name
        path.write_bytes(cut)
        with pytest.raises(ReplayError, match=f"{name}: .*give a (whole )?trace file"):
            load_trace(path)


@pytest.mark.parametrize("policy", ["lru", "value", "auto"])
def test_a_conversation_resumes_at_its_exact_end(trace_file: Path, policy: str) -> None:
    result = replay(load_trace(trace_file), "35b-a3b", 8, policy)
    # The second turn resumes after 229 of 230 tokens, the third after 349 of 350.
    assert result["token_hit"] * result["prompt_tokens"] == pytest.approx(229 + 349)
    assert result["token_hit"] + sum(result["causes"].values()) == pytest.approx(1)


def test_marconi_is_replayed_by_its_own_admission_and_offered_by_no_engine(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay-trace", str(trace_file), "--gb", "8", "--policy", "marconi", "--json"]
    assert cli.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    # Answers end and branches lie at whole blocks: 3 of the first turn's, 5 of the second's.
    assert result["token_hit"] * result["prompt_tokens"] == pytest.approx(64 * (3 + 5))
    assert set(result["hit_from"]) <= {"turn_end", "branch"}
    with pytest.raises(SystemExit):
        cli.main(["serve", "--cache-policy", "marconi"])
    assert "cache-policy" in capsys.readouterr().err


def test_a_document_asked_about_again_resumes_inside(tmp_path: Path) -> None:
    """Ask twice about documents of 20 blocks of 512. After some documents, the second question
    resumes at a state kept inside the document."""
    path = tmp_path / "documents.jsonl"
    rows = []
    for document in range(30):
        shared = [1000 * (document + 1) + block for block in range(20)]
        for asked in range(2):
            blocks = [*shared, 1_000_000 + 2 * document + asked, 2_000_000 + 2 * document + asked]
            rows.append(line(4000 * len(rows), 21 * 512 + 200, 20, blocks))
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    result = replay(load_trace(path), "35b-a3b", 8, "auto")
    assert result["hit_from"]["interior"] > 0.3
    assert result["token_hit"] > 0.35


def test_the_command_prints_json_and_a_waterfall(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay-trace", str(trace_file), "--model", "9b", "--gb", "4", "--policy", "value"]
    assert cli.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"token_hit", "flops_saved", "requests_per_second", "causes"} <= set(result)
    assert cli.main(arguments) == 0
    assert "kv_evicted" in capsys.readouterr().out


def test_the_command_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay-trace", "absent.jsonl"]) == 1
    assert "absent.jsonl" in capsys.readouterr().err


def crowded(folder: Path) -> Path:
    """Write a trace of eight alternating conversations with three turns each, larger than an arena
    of 1 GiB."""
    path = folder / "crowded.jsonl"
    rows = []
    for turn in range(3):
        for session in range(8):
            blocks = [10_000 * (session + 1) + block for block in range(100 * (turn + 1))]
            more = {"session_id": session, "agent": 0, "stop": "end_turn"}
            rows.append(line(1000 * len(rows), 6400 * (turn + 1), 40, blocks, **more))
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.mark.parametrize("policy", ["lru", "value", "auto"])
def test_what_the_arena_cannot_keep_comes_back_from_the_host(tmp_path: Path, policy: str) -> None:
    trace = load_trace(crowded(tmp_path))
    alone = replay(trace, "35b-a3b", 1, policy)
    whole = replay(trace, "35b-a3b", 65, policy)
    tiered = replay_tiers(trace, "35b-a3b", Tiers(1, (64,)), policy)
    assert alone["flops_saved"] < 0.5 * whole["flops_saved"]
    assert tiered["flops_saved"] == pytest.approx(whole["flops_saved"])
    assert tiered["hit_rate"] + sum(tiered["causes"].values()) == pytest.approx(1)
    assert tiered["written_bytes"]["host"] > 0
    # Loaded states stay in the arena as long as any others.
    assert 0 < tiered["loaded_bytes"]["host"] < tiered["written_bytes"]["host"] * 3


def test_what_the_host_cannot_keep_comes_back_from_the_disk(tmp_path: Path) -> None:
    trace = load_trace(crowded(tmp_path))
    host = replay_tiers(trace, "35b-a3b", Tiers(1, (1.5,)), "value")
    disk = replay_tiers(trace, "35b-a3b", Tiers(1, (1.5, 64)), "value")
    unwritten = replay_tiers(trace, "35b-a3b", Tiers(1, (1.5, 64), disk_write_budget=0), "value")
    assert host["flops_saved"] < disk["flops_saved"]
    assert disk["loaded_bytes"]["disk"] > 0 < disk["disk_drive_writes_per_day"]
    assert unwritten["written_bytes"]["disk"] == 0
    assert unwritten["refused_writes"]["disk"] > 0
    assert unwritten["flops_saved"] == host["flops_saved"]


def test_the_command_prints_tiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay-trace", str(crowded(tmp_path)), "--tiers", "1,8,16"]
    assert cli.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tiers"] == {"arena": 1, "host": 8, "disk": 16}
    assert result["loaded_bytes"].keys() == result["written_bytes"].keys() == {"host", "disk"}
    assert 0 < result["flops_saved"] < 1 > result["hit_rate"] > 0
    assert cli.main(arguments) == 0
    assert "drive writes a day" in capsys.readouterr().out


def test_more_host_memory_recovers_what_a_replay_with_it_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(crowded(tmp_path))

    def result(*more: str) -> dict[str, Any]:
        arguments = ["replay-trace", file, "--policy", "value", *more]
        assert cli.main([*arguments, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    saved = {size: result("--tiers", f"1,{size}")["flops_saved"] for size in ("2", "10", "66")}
    found = result("--tiers", "1,2", "--more-host", "8,64")["what_if"]
    assert [each["more_host_gib"] for each in found] == [8, 64]
    for each, size in zip(found, ("10", "66"), strict=True):
        assert each["flops_points"] == pytest.approx(100 * (saved[size] - saved["2"]))
    assert found[1]["flops_points"] > 10 and found[1]["token_points"] > 0
    (alone,) = result("--gb", "1", "--more-host", "66")["what_if"]
    bare = result("--gb", "1")["flops_saved"]
    assert alone["flops_points"] == pytest.approx(100 * (saved["66"] - bare))
    assert cli.main(["replay-trace", file, "--gb", "1", "--more-host", "8"]) == 0
    assert "+8 GiB host would recover" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", ["", "x", "0", "8,-1", "inf", "1e19"])
def test_odd_sizes_of_more_host_memory_are_refused(
    trace_file: Path, capsys: pytest.CaptureFixture[str], sizes: str
) -> None:
    assert cli.main(["replay-trace", str(trace_file), "--more-host", sizes]) == 1
    assert f"--more-host {sizes}" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["64", "64,x", "64,0", "1,2,3,4", "64,nan", "64,-1"])
def test_odd_tiers_are_refused(
    trace_file: Path, capsys: pytest.CaptureFixture[str], sizes: str
) -> None:
    assert cli.main(["replay-trace", str(trace_file), "--tiers", sizes]) == 1
    assert f"--tiers {sizes}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        *(["--gb", size] for size in ("0", "-1", "nan", "inf", "1e30")),
        *(["--tiers", "1,2,3", "--disk-write-budget", rate] for rate in ("0", "-1", "nan", "inf")),
        ["--disk-write-budget", "5"],
        ["--disk-write-budget", "5", "--tiers", "64,1024"],
    ],
    ids=str,
)
def test_odd_sizes_and_rates_are_refused(
    trace_file: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert cli.main(["replay-trace", str(trace_file), *flags]) == 1
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "--gb" in message or "--disk-write-budget" in message


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_have_their_published_sizes(name: str) -> None:
    layout = published_or_folder(name).cache_layout("bfloat16", "bfloat16", "float32")
    kv_token, mib = {
        "0.8b": (12288, 18.6),
        "2b": (12288, 18.6),
        "4b": (32768, 49.1),
        "9b": (32768, 49.1),
        "27b": (65536, 146.8),
        "35b-a3b": (20480, 61.4),
        "122b-a10b": (24576, 146.5),
        "397b-a17b": (30720, 183.2),
    }[name]
    assert layout.page_bytes == 64 * kv_token
    assert layout.slot_bytes / 2**20 == pytest.approx(mib, rel=2e-3)


def test_prefill_flops_of_the_published_moe() -> None:
    flops = prefill_flops(published_or_folder("35b-a3b"))
    assert flops.linear == pytest.approx(5.0e9, rel=0.02)
    assert flops.quadratic == 163840
    assert flops.of(2000) > 2 * flops.of(1000)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ModelConfigError, match=r"one of 0\.8b"):
        published_or_folder("12b")
    assert isinstance(published_or_folder("9b"), DeltaNetConfig)


def test_a_draft_layer_costs_what_no_longer_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def saved(gib: str, *flags: str) -> float:
        arguments = ["replay-trace", str(crowded(tmp_path)), "--gb", gib, "--policy", "value"]
        assert cli.main([*arguments, "--json", *flags]) == 0
        share: float = json.loads(capsys.readouterr().out)["flops_saved"]
        return share

    auto = ("--draft-layer", "auto")
    assert saved("3") == saved("3", "--draft-layer", "off") > saved("3", *auto) > 0
    assert saved("65") == saved("65", *auto)
    tiers = ("--tiers", "1,2")
    assert saved("1", *tiers) > saved("1", *tiers, *auto)
    # Smaller types let more states stay.
    for smaller in (("--kv-dtype", "fp8"), ("--state-dtype", "bf16")):
        assert saved("3", *smaller) > saved("3")
        assert saved("1", *tiers, *smaller) > saved("1", *tiers)
