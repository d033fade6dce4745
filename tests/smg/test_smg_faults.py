"""Tests of killed nodes of a pair behind the unmodified smg gateway. The client gets an error, and
the other node comes to rest. The next request works once the node is back."""

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from tasuki.cli.launcher import Daemon
from tasuki.transfer.failpoints import VARIABLE, Place
from tests.harness.daemons import Node, flags, has_met, kept_address
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.http_calls import JSON, connect
from tests.harness.running_nodes import CHUNKS, require_nixl, running
from tests.harness.smg_process import Smg, in_front_of_pair, require_smg, smg
from tests.harness.waiting import until

require_smg()

STORY = "Tell me a story about the runner and the sash. " * 20
NEW_TOKENS = 8
# Tokens of an answer; a node is killed in its middle.
MANY_TOKENS = 120
# Settings of the gateway's checks; by default it checks a node once a minute.
WATCHFUL = (
    *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "5"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
)


@dataclass(frozen=True)
class Heard:
    """The outcome for a client. text: the part of the answer received. finished: the reason of its
    end, or None. error: the error received instead, with its type; empty if there was none."""

    status: int
    text: str
    finished: str | None
    error: str = ""


def question(streams: bool, new_tokens: int) -> dict[str, object]:
    return {
        "model": "embedded",
        "messages": [{"role": "user", "content": STORY}],
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": streams,
    }


def ask(gateway: Smg, streams: bool, new_tokens: int = NEW_TOKENS) -> Heard:
    reply = gateway.chat(**question(streams, new_tokens))
    if reply.status != 200:
        error = reply.error
        return Heard(reply.status, "", None, f"{error['type']}: {error['message']}")
    return read_stream(reply.events) if streams else read_whole(reply.json)


def ask_and_kill(gateway: Smg, doomed: Node) -> Heard:
    """Kill `doomed` at the first text of a stream of MANY_TOKENS; return the outcome."""
    with closing(connect(gateway.address)) as connection:
        body = json.dumps(question(streams=True, new_tokens=MANY_TOKENS))
        connection.request("POST", "/v1/chat/completions", body, JSON)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        lines: list[bytes] = []
        while not read_stream(events_of(lines)).text:
            lines.append(response.readline())
            assert lines[-1], lines
        doomed.kill()
        return read_stream(events_of([*lines, *response.readlines()]))


def events_of(lines: Sequence[bytes]) -> list[Any]:
    data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    return [json.loads(item) for item in data if item.strip() != b"[DONE]"]


def read_whole(answer: Any) -> Heard:
    (choice,) = answer["choices"]
    return Heard(200, choice["message"]["content"], choice["finish_reason"])


def read_stream(chunks: list[Any]) -> Heard:
    text, finished, error = "", None, ""
    for chunk in chunks:
        if "error" in chunk:
            error = f"{chunk['error']['type']}: {chunk['error']['message']}"
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
            finished = choice["finish_reason"] or finished
    return Heard(200, text, finished, error)


def answered(gateway: Smg, streams: bool, doomed: Node | None = None) -> Heard | None:
    """Return the first outcome not refused by the gateway, since it may not know yet of a node's
    return. Return None if `doomed` died of a request already given up by the gateway."""
    answers: list[Heard] = []

    def comes() -> bool:
        answers.append(ask(gateway, streams))
        # 504: the gateway has not reached a new or slow node.
        return answers[-1].status not in (503, 504)

    def is_dead() -> bool:
        return doomed is not None and doomed.exit_status is not None

    until(lambda: comes() or is_dead(), "the gateway goes on refusing")
    return answers[-1] if answers[-1].status not in (503, 504) else None


class Lives:
    """A starter of a node's processes. `doomed` is the place of the next process's death."""

    def __init__(self) -> None:
        self.doomed: Place | None = None

    def __call__(self, command: str, flags: Sequence[str], bind: str) -> Daemon:
        doomed, self.doomed = self.doomed, None
        kill = {} if doomed is None else {VARIABLE: f"{doomed.value}=kill"}
        return ForkedDaemon(command, flags, bind, kill)


@dataclass(frozen=True)
class Fronted:
    """A pair behind the gateway. undisturbed: the answer for a client if no node dies."""

    gateway: Smg
    prefill: Node
    decode: Node
    prefill_lives: Lives
    decode_lives: Lives
    undisturbed: str

    def heard_at_a_death(self, place: Place, streams: bool) -> Heard:
        """Kill a node at `place` and return its client's outcome. Leave the other node at rest and
        the next request answered by both."""
        dying, lives, other = self.prefill, self.prefill_lives, self.decode
        if place.value.startswith("receiver"):
            dying, lives, other = self.decode, self.decode_lives, self.prefill
        assert dying.stop() == 0
        heard = None
        while heard is None:
            lives.doomed = place
            dying.start_again()
            # All caches are empty, so the request needs a hand-over.
            other.client.flush()
            until(lambda: has_met(self.decode), "the nodes have not met")
            heard = answered(self.gateway, streams, dying)
            assert dying.stop() == -signal.SIGKILL
        self._recover(dying, other, streams)
        return heard

    def heard_as_the_prefill_node_dies(self) -> Heard:
        """Kill the prefill node after the first text of a stream of MANY_TOKENS. Return the outcome
        and recover, as heard_at_a_death does."""
        for node in (self.prefill, self.decode):
            node.client.flush()
        arrived = self.decode.arrived()
        heard = ask_and_kill(self.gateway, self.prefill)
        assert self.decode.arrived() > arrived
        self._recover(self.prefill, self.decode, streams=True)
        return heard

    def _recover(self, dead: Node, other: Node, streams: bool) -> None:
        other.assert_at_rest()
        until(lambda: self._refused(streams), "the gateway does not notice that a node is gone")
        dead.start_again()
        until(lambda: has_met(self.decode), "the nodes have not met")
        assert answered(self.gateway, streams) == Heard(200, self.undisturbed, "length")
        for node in (dead, other):
            node.assert_at_rest()

    def _refused(self, streams: bool) -> bool:
        """Return true if the gateway already knows of the death. Otherwise it returns an error,
        since no node can answer."""
        heard = ask(self.gateway, streams)
        assert heard.error, heard
        return heard.status == 503


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    require_nixl()
    folder, shared = tmp_path_factory.mktemp("smg"), [*flags(), "--gateway", *CHUNKS]
    prefill_lives, decode_lives = Lives(), Lives()
    with (
        running(Node("prefill", *shared, bind=kept_address(), launch=prefill_lives)) as prefill,
        running(
            Node(
                *("decode", *shared, "--prefill", prefill.address),
                bind=kept_address(),
                launch=decode_lives,
            )
        ) as decode,
        smg(folder, 2, *in_front_of_pair(prefill, decode), *WATCHFUL) as gateway,
    ):
        first = answered(gateway, streams=False)
        assert first is not None and first.finished == "length" and first.text
        assert decode.arrived() > 0
        yield Fronted(gateway, prefill, decode, prefill_lives, decode_lives, first.text)


@pytest.mark.parametrize(
    ("place", "stream"),
    [(Place.SENDER_AFTER_POST, "Prefill"), (Place.RECEIVER_ON_LANDED, "Decode")],
)
def test_a_node_that_dies_in_the_middle_is_an_error_with_a_type(
    pair: Fronted, place: Place, stream: str
) -> None:
    heard = pair.heard_at_a_death(place, streams=False)
    assert (heard.status, heard.text, heard.finished) == (502, "", None)
    assert heard.error.startswith(f"server_error: {stream} stream failed")


def test_a_prefill_node_that_dies_after_the_hand_over_is_not_missed(pair: Fronted) -> None:
    whole = ask(pair.gateway, streams=True, new_tokens=MANY_TOKENS)
    assert whole.finished == "length" and whole.text.startswith(pair.undisturbed)
    assert pair.heard_as_the_prefill_node_dies() == whole


def test_a_stream_whose_decode_node_dies_never_ends_as_if_it_were_whole(pair: Fronted) -> None:
    heard = pair.heard_at_a_death(Place.RECEIVER_AFTER_COMMIT, streams=True)
    assert heard.error.startswith("stream_error: ") and heard.finished is None
    assert pair.undisturbed.startswith(heard.text) and heard.text != pair.undisturbed
