"""Tests of `tasuki bench serving` on the free model: its counts and output, not its speed."""

import asyncio
import json
import os
import threading
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.bench.load.client.answer import Answer, AnswerReader
from tasuki.bench.load.client.http_stream import HttpCaller
from tasuki.bench.load.cpu_by_role import CpuSample, descendants, sample, use_between
from tasuki.bench.load.figures import NodeWindow, Window, answer_figures, endless_figures
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.free.runner import FreeRunner, LayerTicks
from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import VOCABULARY, answer_to, next_token
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.node_counters import NodeCounters
from tasuki.bench.load.node_process import NodeSample
from tasuki.bench.load.words import Words, word
from tasuki.cli import main as cli
from tasuki.engine.forward_plan import (
    AT_INDEX,
    ForwardPlan,
    JoinedSequence,
    NewPages,
    RowFlag,
    plan_rows,
)
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.utils.system import name_this_thread
from tests.harness.processes import command_of
from tests.harness.waiting import HANG_SECONDS

FEW = ["--streams", "8", "--clients", "1", "--seconds", "1", "--prompt", "70", "--answer", "20"]


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """Run the command and return its output; it must print JSON only. Check for processes left
    over."""
    assert cli.main(["bench", "serving", "--free-model", "--json", *flags]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    commands = [command_of(pid) for pid in descendants(os.getpid())]
    assert not [line for line in commands if b"node_main" in line or b"spawn_main" in line]
    return document


def assert_answered(document: dict[str, Any]) -> None:
    """Check the counts: some requests ended whole, none failed, and no token was wrong. A request
    not cut at the end got all its tokens."""
    assert document["requests"] >= document["whole"] > 0
    assert document["failed"] == document["unanswered"] == document["wrong_tokens"] == 0
    assert document["why"] == []


def assert_measured(document: dict[str, Any]) -> None:
    assert document["tokens"] > 0
    assert document["tokens_per_second"] > 0
    for name in ("engine_us_per_token", "front_us_per_token", "loop_ms_per_step", "steps"):
        assert document[name] > 0, name
    assert document["cpu_seconds"]["engine/tasuki-engine"] > 0
    loop = document["loop_ms_per_step"] * document["steps"] * 1e3
    assert loop <= document["engine_us_per_token"] * document["tokens"] * 1.01
    for name in ("ttft_ms", "gap_ms"):
        assert document[name]["p50"] <= document[name]["p95"] <= document[name]["p99"]
    assert document["host"]["versions"]["python"]
    assert document["host"]["cores"] == os.cpu_count()


def test_streams_over_http_at_a_pace_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "serving.json"
    document = run(capsys, *FEW, "--out", str(out), "--commit", "abc")
    assert_answered(document)
    assert_measured(document)
    assert document["case"] == "8 streams, http, free model"
    assert document["requests"] - document["whole"] <= 8
    assert document["as_fast_as_it_goes"]["tokens_per_second"] == document["tokens_per_second"]
    assert document["pace"]["tokens_per_second"] > 0
    assert json.loads(out.read_text()) == document
    table = out.with_suffix(".md").read_text()
    assert "commit abc" in table
    assert f"| engine_us_per_token | {document['engine_us_per_token']} |" in table


@pytest.mark.usefixtures("forked")
def test_streams_over_grpc_at_a_given_pace(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, *FEW, "--protocol", "grpc", "--step-ms", "4")
    assert_answered(document)
    assert_measured(document)
    assert document["case"] == "8 streams, grpc, free model"
    assert "pace" not in document


AGENTS = ["--sessions", "4", "--turns", "2", "--prefix", "300", "--turn-tokens", "200"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("warm", ["0", "1"])
def test_agents_of_one_node(warm: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*AGENTS, "--turn-answer", "10", "--step-ms", "2", "--warm", warm]
    document = run(capsys, "--agents", *flags)
    assert_answered(document)
    assert_measured(document)
    assert document["case"] == "4 agents, http, free model"
    assert document["requests"] == document["whole"] == 4 * 2
    turns_that_have_it = 2 if int(warm) else 1
    assert document["cached_tokens"] >= 4 * 300 * turns_that_have_it


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "prefill_flags",
    [
        pytest.param("", id="one port"),
        pytest.param("--handover-bind 127.0.0.1:0", id="a port for decode nodes"),
    ],
)
def test_agents_of_a_pair(prefill_flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*AGENTS, "--turn-answer", "10", "--step-ms", "2", f"--prefill-flags={prefill_flags}"]
    document = run(capsys, "--pair", *flags)
    assert_answered(document)
    assert_measured(document)
    assert document["requests"] == document["whole"] == 4 * 2
    assert document["tokens"] == 4 * 2 * 10
    assert document["cached_tokens"] > 0
    handovers = document["handovers"]
    # A busy machine loses links; requests over them are then computed here.
    assert handovers["done"] + handovers["lost"] > 0
    assert handovers["done"] + handovers["fallen_back"] <= document["requests"]
    assert handovers["fallen_back"] <= handovers["lost"]
    if handovers["done"]:
        assert document["exposed_ms"]["p50"] <= document["exposed_ms"]["p95"]
    assert document["prefill_node"]["cpu_seconds"]["engine/tasuki-sender"] > 0


@pytest.mark.usefixtures("forked")
def test_endless_streams_have_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--endless", "--streams", "4", "--long", "300", "--seconds", "1", "--step-ms", "5"]
    status = cli.main(["bench", "serving", "--free-model", *flags])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == ("FAILED" if status else "PASSED")
    figures = dict(line.split(maxsplit=1) for line in lines[:-1] if " " in line)
    assert float(figures["min_share"]) > 0
    # A token may arrive late, and the gap after it may be shorter than a step. Not all gaps are so
    # short.
    assert float(figures["longest_gap_ms"]) >= 5
    assert float(figures["tokens_per_second"]) <= 1.5 * 4 / 5e-3


# Verdicts and figures


def answer(times: Sequence[float], asked: int = 10_000, ended: float = 20.0) -> Answer:
    return Answer(0, 0, asked, 0.0, ended, array("d", times), array("i", [1] * len(times)))


def node_window(grows: int = 0) -> NodeWindow:
    none = NodeCounters("")
    first, last = (
        NodeSample(CpuSample({}, {}, {}, memory), none) for memory in (1000, 1000 + grows)
    )
    return NodeWindow("serve", 1, first, last)


def every(seconds: float, begin: float = 9.0) -> list[float]:
    """Return times of tokens on both sides of the window from 10 to 20."""
    return [begin + seconds * number for number in range(int(12 / seconds))]


@pytest.mark.parametrize(
    ("answers", "grows", "failing"),
    [
        pytest.param([every(0.1)] * 3, 0, "", id="even"),
        pytest.param([every(0.1), every(0.1), every(0.12)], 0, "min / median", id="less"),
        pytest.param(
            [every(0.1), every(0.1), [*every(0.1)[:50], *every(0.09, 14.5)]],
            0,
            "longest gap",
            id="stood still",
        ),
        pytest.param([every(0.1)] * 3, 100, "memory", id="memory"),
    ],
)
def test_what_fails_endless_streams(answers: list[list[float]], grows: int, failing: str) -> None:
    figures = endless_figures(
        [answer(times) for times in answers], Window(10, 20), node_window(grows)
    )
    failed = [name for name, held in figures["verdicts"].items() if not held]
    assert [name for name in failed if not name.startswith(failing)] == []
    assert figures["passed"] == (not failing)
    assert bool(failed) == bool(failing)


def test_a_stream_that_ended_is_no_endless_one() -> None:
    figures = endless_figures(
        [answer(every(0.1)), answer(every(0.1), ended=19.9)], Window(10, 20), node_window()
    )
    assert not figures["passed"]


def test_figures_are_of_the_window_and_what_was_cut_is_no_failure() -> None:
    whole = Answer(0, 0, 3, 10.5, 11.0, array("d", [9.0, 10.6, 10.7]), array("i", [1, 1, 1]))
    cut = answer([10.1, 10.3], ended=20.1)
    short = answer([10.1], ended=15.0)
    end_cut = replace(whole, ended=20.1, error="the connection ended: None")
    figures = answer_figures([whole, cut, short, end_cut], Window(10, 20))
    assert figures["tokens"] == 7
    assert figures["tokens_per_second"] == 0.7
    assert (figures["whole"], figures["failed"], figures["requests"]) == (1, 1, 4)
    assert figures["gap_ms"]["p50"] == pytest.approx(100)


# CPU time by role


def burn(seconds: float) -> None:
    name_this_thread()
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


def test_cpu_time_is_told_apart_by_the_names_of_threads() -> None:
    done, go = threading.Barrier(3), threading.Event()
    burnt: dict[str, float] = {}

    def work(seconds: float) -> None:
        burn(seconds)
        # The time may be longer: a hypervisor charges its own time to the running thread.
        burnt[threading.current_thread().name] = time.thread_time()
        done.wait()
        go.wait()

    before = sample(os.getpid())
    for name, seconds in (("tasuki-engine", 0.2), ("tasuki-front_0", 0.1)):
        threading.Thread(target=work, args=(seconds,), name=name, daemon=True).start()
    done.wait()
    use = use_between(os.getpid(), before, sample(os.getpid()))
    go.set()
    assert use.engine_loop == use.engine == pytest.approx(use.threads["engine/tasuki-engine"])
    for name, counted in (
        ("tasuki-engine", use.engine),
        ("tasuki-front_0", use.threads["front/tasuki-front_0"]),
    ):
        assert burnt[name] <= counted < burnt[name] + 0.1
    assert use.front >= use.threads["front/tasuki-front_0"]


def test_an_engine_in_a_process_apart_counts_whole() -> None:
    names = {(1, 1): "python", (2, 2): "python", (2, 3): "tasuki-engine", (4, 4): "python"}
    before = CpuSample({}, {}, {}, 0)
    seconds = {(1, 1): 1.0, (2, 2): 2.0, (2, 3): 4.0, (4, 4): 8.0}
    after = CpuSample(seconds, names, {1: 1.5, 2: 6.25, 4: 8.0}, 0)
    use = use_between(1, before, after)
    assert (use.engine, use.engine_loop) == (6.25, 4.0)
    assert use.front == 9.5, "with what ended threads of the fronts took"


# The free model


def test_answers_of_the_free_model_are_known_and_never_end() -> None:
    tokens = answer_to([5, 6], VOCABULARY)
    first, second = next(tokens), next(tokens)
    assert first == next_token(6, 2, VOCABULARY)
    assert second == next_token(first, 3, VOCABULARY)
    many = next_token(np.arange(VOCABULARY), np.arange(VOCABULARY) + 10**6, VOCABULARY)
    assert 1 <= many.min() <= many.max() < VOCABULARY


def test_layers_of_a_forward_tick_while_it_lasts() -> None:
    steps = StepCounter()
    ticks = LayerTicks(steps, 4, timed=True)
    begins = time.monotonic()
    ticks.forward(begins, begins + 0.2)
    assert ticks.launched == 4
    assert steps.wait_for(4, 30)
    times = [steps.time_of(tick) for tick in range(1, 5)]
    assert times[0] is not None and times[0] >= begins + 0.05
    assert times[-1] is not None and times[-1] >= begins + 0.2


def test_a_forward_takes_its_time_behind_the_one_before() -> None:
    """Repeat until the second forward is launched while the first one runs. A machine that stalls
    between the two launches makes the try void."""
    while not two_forwards():
        pass


def two_forwards() -> bool:
    """Return true if the second forward was launched while the first one ran."""
    cost = StepCost(base=0.1, row=0.01, prompt_token=0.001)
    runner = FreeRunner(4, VOCABULARY, cost, None)
    begun = time.monotonic()
    joined = JoinedSequence(0, (0, 1), 1, SamplingParams())
    first = runner.launch(
        ForwardPlan(
            0,
            joined=(joined,),
            new_pages=(NewPages(0, np.array([0], np.int32)),),
            rows=plan_rows([0, 0, 3, 0, 0, 64, 1, 0]),
            tokens=np.array([5, 6, 7], np.int32),
        )
    )
    at_index = int(AT_INDEX | RowFlag.DECODES)
    second = runner.launch(ForwardPlan(1, rows=plan_rows([0, 3, 1, 0, 1, 64, 1, at_index])))
    if time.monotonic() >= first.ends_at:
        return False
    ended = runner.record_event()
    assert first.ends_at >= begun + 0.103
    assert second.ends_at == pytest.approx(first.ends_at + 0.11)
    assert second.idle_seconds == 0
    drawn = [int(token) for forward in (first, second) for token in forward.result().tokens]
    assert drawn == list(islice(answer_to([5, 6, 7], VOCABULARY), 2))
    assert time.monotonic() >= second.ends_at and ended()
    return True


def test_a_free_forward_takes_no_time() -> None:
    assert StepCost(0.0, 0.01, 0.001).of(rows=2, prompt_tokens=3) == 0.0


def test_text_of_an_answer_has_its_ids(tmp_path: Path) -> None:
    write_model_folder(tmp_path, free_shape(4))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer is not None
    assert tokenizer.decode([1, 4095]) == f" {word(1)} {word(4095)}"
    assert Words(VOCABULARY).tokens(f" {word(1)} {word(4095)}") == [1, 4095]


# The client


def event(body: dict[str, Any] | str) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def http_server(pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """Serve these pieces as the answer to any request, each in its own write, then stay silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client closes the connection once it has read enough.
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        await served.wait()


def asked(
    pieces: Sequence[bytes],
    expected: Sequence[int] | None,
    count: int,
    patience: float = HANG_SECONDS,
) -> Answer:
    async def ask() -> Answer:
        got = Answer(0, 0, count)
        reader = AnswerReader(got, None if expected is None else iter(expected), lambda: None)
        async with http_server(pieces) as address:
            await HttpCaller(address, Words(VOCABULARY)).ask([1, 2], reader, patience)
        return got

    return asyncio.run(ask())


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def text(*tokens: int) -> dict[str, Any]:
    return {"choices": [{"text": "".join(f" {word(token)}" for token in tokens)}]}


def test_a_stream_is_read_however_it_is_cut() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 64}}}
    whole = HEAD + event(text(7)) + event(text(8, 9)) + event(usage) + event("[DONE]")
    for size in (1, 7, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        got = asked(pieces, [7, 8, 9], 3)
        assert got.whole, got
        assert got.tokens.tolist() == [7, 8, 9]
        assert got.cached_tokens == 64
        assert got.times[1] == got.times[2]


def test_wrong_and_missing_tokens_are_noticed() -> None:
    wrong = asked([HEAD + event(text(7, 6)) + event("[DONE]")], [7, 8], 2)
    assert wrong.wrong == 1 and not wrong.whole
    assert not asked([HEAD + event(text(7)) + event("[DONE]")], [7, 8], 2).whole


def test_a_request_that_is_never_answered_is_given_up() -> None:
    got = asked([HEAD + event(text(7))], [7, 8], 2, patience=0.3)
    assert got.unanswered and not got.whole
    assert got.ended > got.times[0]


def test_a_refusal_is_an_error() -> None:
    got = asked([b"HTTP/1.1 503 Busy\r\n\r\n{}"], None, 2)
    assert got.error.startswith("HTTP 503") and not got.unanswered


def test_quantiles_of_what_a_node_counted_in_between() -> None:
    def page(*counts: int) -> NodeCounters:
        bounds = ("1.0", "2.0", "+Inf")
        rows = [
            f'tasuki_x_seconds_bucket{{le="{b}"}} {c}' for b, c in zip(bounds, counts, strict=True)
        ]
        return NodeCounters("\n".join(["# TYPE tasuki_x_seconds histogram", *rows, ""]))

    before, after = page(5, 5, 5), page(5, 15, 15)
    assert after.quantile_since(before, "x_seconds", 0.5) == pytest.approx(1.5)
    assert after.quantile_since(after, "x_seconds", 0.5) is None
    assert page(0, 0, 4).quantile_since(page(0, 0, 0), "x_seconds", 0.5) == 2.0
