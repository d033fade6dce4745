"""Tests of `tasuki bench serving --input`: agents in sessions of growing turns."""

import asyncio
import json
import time
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasuki.bench.errors import ReplayError
from tasuki.bench.load.client.answer import Answer
from tasuki.bench.load.client.loads import GrowingSessions
from tasuki.bench.load.client.replies import Replies, Reply, alike, recorded_replies
from tasuki.bench.load.client.session_shape import SessionShape
from tasuki.bench.load.cpu_by_role import CpuSample
from tasuki.bench.load.figures import NodeWindow, Window
from tasuki.bench.load.node_counters import NodeCounters
from tasuki.bench.load.node_process import NodeSample
from tasuki.bench.load.serving_config import GOLDEN
from tasuki.bench.load.session_figures import session_figures
from tasuki.bench.measure.scripted_drafts import Script
from tasuki.cli import main as cli
from tests.harness.engines import TINY


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["bench", "serving", "--agents", "--json", *flags]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


SMALL = ["--clients", "1", "--input", "300", "--output", "20", "--reuse", ".8", "--seconds", "2"]


@pytest.mark.usefixtures("forked")
def test_sessions_find_what_their_earlier_turns_left(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, "--free-model", "--sessions", "4", "--step-ms", "2", *SMALL)
    assert document["case"] == "4 agents of 300/20 tokens, http, free model"
    assert document["failed"] == document["wrong_tokens"] == 0
    assert document["tokens_per_second_per_gpu"] == document["tokens_per_second"]
    for name in ("tokens_per_second_per_user", "decoding_tokens_per_second_per_user"):
        assert document[name]["p50"] >= document[name]["p90"] > 0
    rates, shape = document["hit_rate"], document["mean_tokens"]
    assert shape["answers"] > 20 and shape["output"] == 20
    # A session may be cut anywhere, so the means of a short window differ from the shape's.
    assert shape["input"] == pytest.approx(300, rel=0.2)
    assert rates["ideal"] == pytest.approx(0.8, abs=0.08)
    # All but an answer's last token is in the cache.
    assert rates["ideal"] - 1.1 / shape["input"] <= rates["reached"] <= rates["ideal"]


@pytest.mark.usefixtures("forked")
def test_drafts_of_a_node_hold_as_scripted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    node = "--device cpu --arena-mib 64 --dtype float32 --draft-count most"
    flags = ["--model", str(tmp_path), "--sessions", "2", "--drafts", "2", "--accept", "1/.5"]
    document = run(capsys, *flags, *SMALL, "--node-flags", node)
    assert document["failed"] == 0 and document["whole"] > 0
    found = document["drafts"]
    # Rows near an answer's end have one draft only.
    assert 2.3 <= found["tokens_per_row"] <= 2.5
    assert 0.7 <= found["accepted"] / found["drafted"] <= 0.8


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (["--free-model"], "input is of agents"),
        (["--free-model", "--agents", "--reuse", "1"], "reuse must be between 0 and 1"),
        (["--free-model", "--agents", "--output", "9000"], "no session has prompts of 9000"),
        (["--free-model", "--agents", "--drafts", "2"], "the free model verifies no drafts"),
        (["--free-model", "--agents", "--quantization", "fp8"], "has no weights"),
        (["--agents", "--accept", ".5"], "give --drafts N as well"),
        (["--agents", "--drafts", "2", "--accept", "2"], "write how likely drafts hold"),
        (["--agents", "--faster", "0"], "faster must be above 0"),
        (["--agents", "--input", "0", "--replies", "trace.jsonl"], "give --input TOKENS"),
    ],
)
def test_a_shape_that_no_session_has_is_refused(
    flags: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "serving", "--input", "9000", *flags])
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "answer", "reuse"),
    [(64_000, 400, 0.9), (300, 20, 0.8), (1000, 100, 0.5), (8000, 500, 0.97), (90, 2, 0.1)],
)
def test_a_sessions_turns_have_the_asked_means(prompt: int, answer: int, reuse: float) -> None:
    shape = SessionShape.of(prompt, answer, reuse)
    lengths = [shape.prompt(turn) for turn in range(shape.turns)]
    assert sum(lengths) / shape.turns == pytest.approx(prompt, rel=0.02)
    new = shape.first + (shape.turns - 1) * shape.fresh
    assert 1 - new / sum(lengths) == pytest.approx(reuse, abs=0.01)
    assert lengths[-1] + answer == shape.longest
    assert all(after - before == shape.fresh + answer for before, after in pairwise(lengths))


def test_the_golden_acceptance_has_its_tokens_a_step() -> None:
    tokens = [round(Script.parse(GOLDEN, drafts).tokens, 2) for drafts in (1, 2, 3)]
    assert tokens == [1.93, 2.73, 3.39]


class Recorder:
    """A client whose answers come at once, each of the tokens asked. It is over after `most`
    turns."""

    vocabulary = 50

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[tuple[int, list[int], int, int]] = []
        self.times: list[float] = []

    @property
    def over(self) -> bool:
        return len(self.asked) >= self.most

    async def ask(
        self, session: int, turn: int, prompt: Sequence[int], asked: int, known: int = 0
    ) -> Answer:
        self.asked.append((turn, list(prompt), asked, known))
        self.times.append(time.monotonic())
        return Answer(session, turn, asked, tokens=array("i", [turn + 1] * asked))


def test_a_session_grows_ends_and_begins_anew() -> None:
    shape, most = SessionShape(turns=3, first=20, fresh=5, answer=4), 8
    client = Recorder(most)
    load = GrowingSessions(2, shape, Replies((Reply(4, 0.2), Reply(2))), "1")
    asyncio.run(load.live(client, 1))
    turns, prompts, asked, known = zip(*client.asked, strict=True)
    # Session 1 of 2 begins in the middle, and with the second reply.
    assert turns == (1, 2, 0, 1, 2, 0, 1, 2)
    assert asked == (2, 4, 2, 4, 2, 4, 2, 4)
    assert len(prompts[0]) == shape.prompt(1) and len(prompts[2]) == shape.first
    for number in range(1, most):
        before, own = (
            prompts[number - 1] + [turns[number - 1] + 1] * asked[number - 1],
            turns[number],
        )
        assert known[number] == (len(before) if own else 0)
        assert (prompts[number][: len(before)] == before) == bool(own)
        assert len(prompts[number]) == known[number] + (shape.fresh if own else shape.first)
    waits = [after - before for before, after in pairwise(client.times)]
    # The turn after each reply of four tokens waits, but not a new session.
    assert waits[3] >= 0.2 and waits[5] >= 0.2 and waits[1] < 0.2


def line(at: float, tokens: int, stop: str = "", **more: int) -> str:
    row = {"timestamp": 1000 * at, "input_length": 9, "output_length": tokens, "hash_ids": [1]}
    return json.dumps(row | {"stop": stop} | more) + "\n"


def test_replies_are_of_conversations_with_the_pauses_of_tool_calls(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        line(0, 10, "tool_use", session_id=1)
        + line(1, 70, "end_turn", session_id=2)
        + line(4, 20, "end_turn", session_id=1)
        + line(5, 5)
        + line(9, 60, "tool_use", session_id=1)
        + line(9, 40, session_id=2)
    )
    replies = recorded_replies(trace, 20, 2.0)
    assert replies.replies == (Reply(5, 2.0), Reply(10), Reply(30), Reply(35), Reply(20))
    second = replies.of_session(1, 2)
    assert [next(second).tokens for _ in range(6)] == [30, 35, 20, 5, 10, 30]
    assert alike(7) == Replies((Reply(7),))


def test_a_trace_without_sessions_has_no_replies(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line(0, 10) + line(1, 10))
    with pytest.raises(ReplayError, match="names no session_id"):
        recorded_replies(trace, 20, 1.0)


def window_of(**counts: float) -> NodeWindow:
    text = "".join(
        f'# TYPE tasuki_{name} counter\ntasuki_{name}_total{{place="{place}"}} {value}\n'
        for (name, place), value in {
            ("drafted_tokens", "1"): counts.get("first", 0),
            ("drafted_tokens", "2"): counts.get("second", 0),
        }.items()
        if value
    )
    held = counts.get("held", 0)
    text += (
        f"# TYPE tasuki_accepted_draft_tokens counter\ntasuki_accepted_draft_tokens_total {held}\n"
    )
    samples = [NodeSample(CpuSample({}, {}, {}, 0), NodeCounters(each)) for each in ("", text)]
    return NodeWindow("serve", 1, *samples)


def answer(started: float, seconds: float, tokens: int = 3, **more: int) -> Answer:
    """Return an answer with its first token after half of its seconds, the last one at its end."""
    times = [started + seconds * (1 + part / (tokens - 1)) / 2 for part in range(tokens)]
    got = array("d", times), array("i", [1] * tokens)
    found = Answer(0, 0, 3, started, started + seconds, *got)
    for name, value in {
        "prompt_tokens": 100,
        "known_tokens": 90,
        "cached_tokens": 80,
        **more,
    }.items():
        setattr(found, name, value)
    return found


def test_users_and_hits_are_of_answers_sent_and_received_in_the_window() -> None:
    ten = [answer(10 + number, 0.3 * (number + 1), known_tokens=60) for number in range(6)]
    outside = [answer(9.5, 1.0), answer(19.9, 1.0), answer(12, 1.0, tokens=2)]
    figures = session_figures([*ten, *outside], Window(10, 20), window_of(), 2)
    assert figures["mean_tokens"] == {"input": 100, "output": 3, "answers": 6}
    assert figures["hit_rate"] == {"reached": 0.8, "ideal": 0.6}
    # 0.1, 0.2, .. 0.6 seconds a token; without the wait half of it for two tokens of three.
    assert figures["tokens_per_second_per_user"] == {"p50": 2.5, "p90": 1.67}
    assert figures["decoding_tokens_per_second_per_user"] == {"p50": 3.33, "p90": 2.22}
    assert figures["tokens_per_second_per_gpu"] == pytest.approx((18 + 3 + 2) / 10 / 2, abs=0.1)
    assert "drafts" not in figures


def test_tokens_a_row_are_of_rows_with_drafts() -> None:
    node = window_of(first=100, second=80, held=120)
    figures = session_figures([], Window(10, 20), node, 1)
    assert figures["drafts"] == {"drafted": 180, "accepted": 120, "tokens_per_row": 2.2}
    assert figures["hit_rate"] == {"reached": None, "ideal": None}
    assert figures["tokens_per_second_per_user"] == {"p50": None, "p90": None}
