"""Tests of a node's recorded events in a file: the same page offline, and an anonymous trace."""

import gzip
import http.server
import json
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.bench.replay.replay import replay
from tasuki.bench.replay.trace import load_trace
from tasuki.cli.recording import dashboard_stream
from tasuki.cli.recording import record as record_module
from tasuki.cli.recording.dashboard_stream import HttpTarget
from tasuki.cli.recording.file_format import (
    NOT_CONNECTED,
    Recording,
    RecordingError,
    RecordingWriter,
)
from tasuki.cli.recording.record import RecordConfig
from tasuki.cli.recording.record import main as record
from tasuki.cli.recording.replay_page import replayed
from tasuki.cli.recording.trace_export import main as trace_export
from tasuki.client.prompt import Prompt
from tasuki.dashboard.history import views
from tasuki.dashboard.history.events import PromptBlocks
from tasuki.engine import messages as m
from tasuki.engine.messages import Usage
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.daemons import random_prompt
from tests.harness.fleet_process import replaying
from tests.harness.http_calls import fetched
from tests.harness.running_nodes import HTTP, fused_node
from tests.harness.waiting import HANG_SECONDS, until

REQUESTS = 4


@dataclass(frozen=True)
class Recorded:
    """A recording with its node's own data. live: the last overview sent by the node."""

    file: Path
    live: dict[str, Any]
    usages: list[Usage]


def interrupted_at_the_end(
    target: HttpTarget, path: str
) -> Generator[dict[str, Any] | None, None, None]:
    """Yield the stream's values until the last request has ended, then raise KeyboardInterrupt."""
    ended = 0
    for value in HttpTarget.followed(target, path):
        yield value
        ended += value is not None and value["kind"] == "finished"
        if ended == REQUESTS:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Yield a recording of two sessions with two turns each and a common prefix."""
    file = tmp_path_factory.mktemp("recording") / "node.jsonl.gz"
    with fused_node(*HTTP) as node, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordConfig, "followed", interrupted_at_the_end)
        arguments = ["--http", node.http_address, "--out", str(file), "--blocks"]
        keeping = threading.Thread(target=record, args=(arguments,))
        keeping.start()
        until(file.exists, "nothing is recorded")
        usages = []
        for seed in (1, 2):
            with node.client.open_session() as session:
                for turn in ((*random_prompt(150, 0), *random_prompt(90, seed)), (5, 6, 7)):
                    session.append(Prompt(token_ids=turn))
                    stream = session.generate(max_new_tokens=4, ignore_eos=True)
                    usages.append(stream.result().usage)
        keeping.join(HANG_SECONDS)
        assert not keeping.is_alive()
        live = json.loads(fetched(node.http_address, "/debug/overview"))
        assert record([*arguments[:2], "--out", f"{file}.short", "--seconds", "1e-9"]) == 0
        yield Recorded(file, live, usages)


def test_the_page_of_a_recording_is_the_node_s(recorded: Recorded) -> None:
    source = replayed(Recording.load(recorded.file))
    shown = views.overview(source.history, source.now(), 300, 150)
    assert shown["totals"] == recorded.live["totals"]
    assert shown["ended"] == recorded.live["ended"] == REQUESTS and shown["sessions"] == 2
    turns = views.sessions(source.history)[0]["turns"]
    assert [turn["cached"] for turn in turns] == [
        usage.hit.usable_tokens for usage in recorded.usages[2:] if usage.hit is not None
    ]
    assert source.about["role"] == "fused" and source.tree is None


def test_it_is_served_offline(recorded: Recorded) -> None:
    with replaying(recorded.file) as address:
        assert b"<title>tasuki</title>" in fetched(address, "/")
        told = json.loads(fetched(address, "/debug/overview"))
    assert told["totals"] == recorded.live["totals"] and told["about"]["recorded"]


def test_the_trace_has_the_traffic_and_no_names(recorded: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl.gz"
    assert trace_export([str(recorded.file), str(out)]) == 0
    rows = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert [row["input_length"] for row in rows] == [u.prompt_tokens for u in recorded.usages]
    assert [row["session_id"] for row in rows] == [0, 0, 1, 1]
    first, second, third, _ = (row["hash_ids"] for row in rows)
    assert first == [0, 1, 2, 3] and second[:3] == [0, 1, 2] and third[:2] == [0, 1]
    assert third[2] not in first
    assert rows[0]["timestamp"] == 0 and rows[-1]["timestamp"] < 60_000
    assert set(rows[0]) == {
        *("timestamp", "input_length", "output_length"),
        *("hash_ids", "stop", "session_id", "agent"),
    }


def test_the_trace_replays_to_the_hits_that_were_told(recorded: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    assert trace_export([str(recorded.file), str(out)]) == 0
    trace = load_trace(out)
    assert trace.block_tokens == 64
    assert len(trace.requests) == 4 and trace.requests[1].conversation == (0, 0)
    told = sum(usage.hit.usable_tokens for usage in recorded.usages if usage.hit is not None)
    prompts = sum(usage.prompt_tokens for usage in recorded.usages)
    share = replay(trace, "35b-a3b", 8.0, "lru")["token_hit"]
    # A trace has all shared tokens except those shared inside a page.
    assert 0 < told - 64 <= share * prompts <= told, (share * prompts, told)


def test_a_recording_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    with RecordingWriter(path, {"node": "n"}) as writer:
        for number in range(2000):
            writer.add(
                {"kind": "fenced", "at": float(number), "room": number, "x": os.urandom(9).hex()}
            )
    whole = path.read_bytes()
    assert len(Recording.load(path).events) == 2000
    path.write_bytes(whole[: len(whole) // 2])
    events = Recording.load(path).events
    assert 0 < len(events) < 2000 and events[-1]["room"] == len(events) - 1


@pytest.mark.parametrize(
    "content",
    [b"", b"text", gzip.compress(b"{}\n"), gzip.compress(b"x\n")],
    ids=["empty", "text", "no header", "no JSON"],
)
def test_what_is_no_recording_is_refused_with_a_mend(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="tasuki"):
        Recording.load(path)
    with pytest.raises(RecordingError, match="give a file"):
        Recording.load(tmp_path / "absent")


def test_names_of_blocks_tell_equal_prefixes_and_nothing_else() -> None:
    def submit(tokens: list[int], salt: bytes = b"") -> m.Submit:
        ids = np.array(tokens, dtype=np.int32)
        return m.Submit(m.RequestId("r"), ids, SamplingParams(), salt=salt)

    blocks, others = PromptBlocks(), PromptBlocks()
    start = list(range(128))
    one, other = blocks.names(submit([*start, 1])), blocks.names(submit([*start, 2]))
    assert len(one) == 3 and one[:2] == other[:2] and one[2] != other[2]
    assert not set(one) & set(blocks.names(submit([*start, 1], salt=b"tenant")))
    assert not set(one) & set(others.names(submit([*start, 1])))


class Scripted(http.server.BaseHTTPRequestHandler):
    """A node with scripted streams: each connection sends the events given by the test."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, ScriptedNode)
        if self.path == "/version":
            self._begin("application/json")
            self.wfile.write(b'{"version": "1"}')
            return
        self._begin("text/event-stream")
        if self.path.startswith("/debug/stream"):
            self._say({"about": {"node": "scripted"}})
            return
        server.connections += 1
        for event in server.script[min(server.connections, len(server.script)) - 1]:
            self._say(event)
        if server.connections == len(server.script):
            server.goes_on.wait(HANG_SECONDS)

    def _begin(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.end_headers()

    def _say(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


class ScriptedNode(http.server.ThreadingHTTPServer):
    """A node with a script. script: events of each connection; the last connection then stays
    silent."""

    daemon_threads = True

    def __init__(self, script: Sequence[Sequence[dict[str, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.script = script
        self.connections = 0
        self.goes_on = threading.Event()


@contextmanager
def scripted(*script: Sequence[dict[str, Any]]) -> Iterator[ScriptedNode]:
    with ScriptedNode(script) as node:
        thread = threading.Thread(target=node.serve_forever, daemon=True)
        thread.start()
        try:
            yield node
        finally:
            node.goes_on.set()
            node.shutdown()
            thread.join(HANG_SECONDS)


def fenced(at: float, transfer_id: int = 1) -> dict[str, Any]:
    return {"kind": "fenced", "at": at, "room": transfer_id}


def recording_of(
    node: ScriptedNode, file: Path, seconds: float, capfd: pytest.CaptureFixture[str]
) -> tuple[list[Any], str]:
    """Record the node; return the events in the file and the text on stderr."""
    target = f"127.0.0.1:{node.server_port}"
    assert record(["--target", target, "--out", str(file), "--seconds", str(seconds)]) == 0
    return list(Recording.load(file).events), capfd.readouterr().err


def test_a_silent_node_is_waited_for_and_the_clock_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The recorder asks the node several times for a sign of life; the node answers.
    monkeypatch.setattr(dashboard_stream, "_SILENT_SECONDS", 0.2)
    began = time.monotonic()
    with scripted([fenced(1.0)]) as node:
        events, said = recording_of(node, tmp_path / "r.gz", 1.5, capfd)
        assert node.connections == 1
    assert 1.5 <= time.monotonic() - began < 1.5 + HANG_SECONDS
    assert events == [fenced(1.0)] and "not connected" not in said


def test_a_node_that_restarts_is_recorded_on_and_the_gap_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_module, "_RETRY_SECONDS", 0.05)
    first = [fenced(1.0, 1), fenced(2.0, 2), fenced(2.0, 3)]
    # The node still has the recorded events, and one more event of the same moment.
    second = [*first, fenced(2.0, 4), fenced(3.0, 5)]
    with scripted(first, [], second) as node:
        events, said = recording_of(node, tmp_path / "r.gz", 1.0, capfd)
        assert node.connections == 3
    kept = [event for event in events if event["kind"] != NOT_CONNECTED]
    assert [event["room"] for event in kept] == [1, 2, 3, 4, 5]
    gaps = [event for event in events if event["kind"] == NOT_CONNECTED]
    assert gaps and all(gap["at"] == 2.0 and gap["seconds"] > 0 for gap in gaps)
    assert "5 events in" in said and f"{len(gaps)} times" in said and "not connected for" in said
    assert replayed(Recording.load(tmp_path / "r.gz")).now() == 3.0


def test_a_node_that_stays_away_does_not_hold_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_module, "_RETRY_SECONDS", 0.05)
    with fused_node(*HTTP) as node:
        target = node.http_address
        arguments = ["--target", target, "--out", str(tmp_path / "r.gz"), "--seconds", "6"]
        keeping = threading.Thread(target=record, args=(arguments,))
        keeping.start()
        until((tmp_path / "r.gz").exists, "nothing is recorded")
    keeping.join(HANG_SECONDS)
    assert not keeping.is_alive()
    said = capfd.readouterr().err
    assert "trying again" in said and "not connected for" in said


def submitted(name: str, *blocks: str) -> dict[str, Any]:
    event = {"kind": "submit", "at": 1.0, "request": name, "session": None, "prompt_tokens": 3}
    return event | ({"blocks": list(blocks)} if blocks else {})


def ended(name: str, reason: str = "length") -> dict[str, Any]:
    usage = {"completion_tokens": 1}
    of = {"request": name, "reason": reason, "usage": usage, "hint": ""}
    return {"kind": "finished", "at": 2.0, **of}


def written(path: Path, *events: dict[str, Any]) -> str:
    with RecordingWriter(path, {"node": "n"}) as writer:
        for event in events:
            writer.add(event)
    return str(path)


def test_an_export_counts_what_it_leaves_out_and_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = {"kind": "rejected", "at": 2.0, "request": "d", "error": {"kind": "x"}}
    file = written(
        tmp_path / "r.gz",
        *(submitted("old"), ended("old")),
        *(submitted("a", "p"), ended("a"), submitted("b", "q"), submitted("c", "r")),
        *(ended("c", "abort"), submitted("d", "s"), refused, ended("before")),
    )
    assert trace_export([file, str(tmp_path / "t.jsonl")]) == 0
    said = capfd.readouterr().err
    assert said.startswith("1 of 6 requests; left out: ")
    for part in (
        "1 had not ended when the recording did",
        "1 were given up by their clients",
        "1 were refused",
        "1 came before a recording with --blocks began",
        "1 began before the node's memory of them",
    ):
        assert part in said, said


@pytest.mark.parametrize(
    ("events", "fix"),
    [
        ([submitted("a", "p")], "record for longer, until requests have ended"),
        ([submitted("a"), ended("a")], "record with --blocks"),
        ([], "record while requests come, with --blocks"),
    ],
    ids=["nothing ended", "no blocks", "nothing came"],
)
def test_an_export_of_nothing_has_the_right_mend(
    tmp_path: Path, events: list[dict[str, Any]], fix: str
) -> None:
    file = written(tmp_path / "r.gz", *events)
    with pytest.raises(RecordingError, match=fix):
        trace_export([file, str(tmp_path / "t.jsonl")])


def test_a_recording_in_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be written"):
        RecordingWriter(tmp_path / "none" / "r.gz", {}).__enter__()
