"""What a node lived through, kept in a file: the same page offline, and an anonymous trace."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.bench.replay.replay import replay
from tasuki.bench.replay.trace import load_trace
from tasuki.cli.recording.dashboard_stream import HttpTarget
from tasuki.cli.recording.file_format import Recording, RecordingError, RecordingWriter
from tasuki.cli.recording.record import RecordConfig
from tasuki.cli.recording.record import main as record
from tasuki.cli.recording.replayed import replayed
from tasuki.cli.recording.trace_export import main as trace_export
from tasuki.client.prompt import Prompt
from tasuki.dashboard.history import views
from tasuki.dashboard.history.prompt_blocks import PromptBlocks
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
    """live: the overview that the node told at its end."""

    file: Path
    live: dict[str, Any]
    usages: list[Usage]


def interrupted_at_the_end(target: HttpTarget, path: str) -> Iterator[dict[str, Any] | None]:
    """What comes until the last request has ended; then Ctrl-C."""
    ended = 0
    for value in HttpTarget.followed(target, path):
        yield value
        ended += value is not None and value["kind"] == "finished"
        if ended == REQUESTS:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Two sessions of two turns each, which begin alike."""
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
    # Only what two sessions share inside a page is not told by a trace.
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
