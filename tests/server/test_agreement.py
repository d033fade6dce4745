"""Tests of agreement: after kills and aborts, Prometheus, the page's data, `explain` and clients
report equal numbers, to the token."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tasuki.cli.explain import main as explain
from tasuki.cli.top import main as top
from tasuki.client.answer import AnswerStream
from tasuki.client.prompt import Prompt
from tasuki.engine.messages import Usage
from tasuki.engine.messages.proto import USAGE
from tests.harness.daemons import Node, meet, random_prompt, resting_at
from tests.harness.http_calls import fetched
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import CHUNKS, HTTP, node_pair
from tests.harness.waiting import until

SMALL = (*CHUNKS, "--max-batch", "2")
PREFIX = random_prompt(320, 1)


class Traffic:
    """Requests to a decode node, by id."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.streams: dict[str, AnswerStream] = {}

    def ask(self, name: str, length: int, new_tokens: int = 6) -> AnswerStream:
        prompt = (*PREFIX, *random_prompt(length, len(self.streams)))
        stream = self.node.client.generate(
            Prompt(token_ids=prompt),
            request_id=name,
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        self.streams[name] = stream
        return stream

    def explained(self, name: str) -> Usage:
        return USAGE.from_wire(self.node.client.explain(name).finished.usage)


@pytest.fixture(scope="module")
def traffic() -> Iterator[Traffic]:
    """Yield the traffic of twelve requests. A prefill node is killed under two of them, and clients
    give up three."""
    environment = resting_at(1)
    with node_pair(*SMALL, decode=HTTP, arena_mib=24, environment=environment) as (prefill, decode):
        traffic = Traffic(decode)
        for number in range(4):
            traffic.ask(f"plain-{number}", 200 + 70 * number).result()
        hit = [traffic.ask(f"killed-{number}", 900) for number in range(2)]
        until(lambda: decode.requests("Receiving") > 0, decode.story)
        prefill.kill()
        for stream in hit:
            stream.result()
        given_up = [traffic.ask(f"aborted-{number}", 300, 800) for number in range(3)]
        next(iter(given_up[0]))
        # A call given up before it reached the node leaves nothing there.
        until(lambda: sum(decode.stats().requests.values()) == len(given_up), decode.story)
        for stream in given_up:
            stream.cancel()
        prefill.start_again()
        meet(decode)
        for number in range(3):
            traffic.ask(f"later-{number}", 260).result()
        until(lambda: not decode.stats().requests, decode.story)
        yield traffic


COUNTERS = {
    "tasuki_request_prompt_tokens_total": "prompt",
    "tasuki_request_usable_tokens_total": "usable",
    "tasuki_generated_tokens_total": "generated",
    "tasuki_looked_up_usable_tokens_total": "found",
    "tasuki_requests_finished_total": "requests",
    "tasuki_handover_bytes_total": "bytes",
    "tasuki_local_fallbacks_total": "fallbacks",
}
LOST = re.compile(r"tasuki_request_lost_tokens_total\{cause=(\w+)\}")


def counted(traffic: Traffic) -> Counter[str]:
    """Return the counters of /metrics under the names of the page's totals."""
    found: Counter[str] = Counter()
    for name, value in scraped(traffic.node.http_address).items():
        if lost := LOST.fullmatch(name):
            found[f"lost.{lost[1]}"] += int(value)
        elif total := COUNTERS.get(name.partition("{")[0]):
            found[total] += int(value)
    return found


def summed(usages: list[Usage]) -> Counter[str]:
    found: Counter[str] = Counter()
    for usage in usages:
        found.update(requests=1, prompt=usage.prompt_tokens, generated=usage.completion_tokens)
        found.update(fallbacks=int(usage.local_fallback))
        if usage.transfer is not None:
            found["bytes"] += usage.transfer.bytes
        if usage.hit is None:
            found["lost.unscheduled"] += usage.prompt_tokens
            continue
        found["usable"] += usage.hit.usable_tokens
        found["found"] += usage.hit.usable_tokens
        found.update({f"lost.{cause}": tokens for cause, tokens in usage.hit.causes.items()})
    return found


def page(traffic: Traffic, path: str = "/debug/overview") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(fetched(traffic.node.http_address, path))
    return told


def test_explain_tells_what_the_client_was_told(traffic: Traffic) -> None:
    finished = [name for name in traffic.streams if not name.startswith("aborted")]
    assert len(finished) == 9
    for name in finished:
        assert traffic.explained(name) == traffic.streams[name].result().usage


def test_counters_and_page_are_the_sum_of_what_was_told(traffic: Traffic) -> None:
    told = +summed([traffic.explained(name) for name in traffic.streams])
    assert told["requests"] == 12 and told["usable"] > 0 and told["fallbacks"] >= 1
    assert told["prompt"] == told["usable"] + sum(
        tokens for name, tokens in told.items() if name.startswith("lost.")
    )
    assert +counted(traffic) == told
    shown = Counter(page(traffic)["totals"])
    for name in ("requests", "prompt", "usable", *(name for name in told if "lost." in name)):
        assert shown[name] == told[name], name


def test_the_cache_s_counters_are_its_statistics(traffic: Traffic) -> None:
    seen, stats = scraped(traffic.node.http_address), traffic.node.stats()
    assert sum(stats.lost.values()) > 0
    for cause, tokens in stats.lost.items():
        assert seen[f"tasuki_cache_lost_tokens_total{{cause={cause}}}"] == tokens
    assert seen["tasuki_cache_usable_tokens_total"] == stats.tree["usable_tokens"]
    assert seen["tasuki_requests_finished_total{reason=length}"] == 9
    assert seen["tasuki_requests_finished_total{reason=abort}"] == 3


def test_the_intervals_of_the_waterfall_are_its_totals(traffic: Traffic) -> None:
    shown = page(traffic, "/debug/overview?seconds=3600&points=60")
    for name, values in shown["hits"]["columns"].items():
        assert sum(values) == shown["totals"].get(name, 0), name


def test_the_ledger_tells_of_the_kill_and_of_the_aborts(traffic: Traffic) -> None:
    faults = page(traffic, "/debug/faults")
    counts = faults["counts"]
    assert counts["aborted"] == 3
    # A busy machine may starve a node for a whole heartbeat timeout. The link is then lost and
    # comes back later: it may be lost just now.
    assert counts["peers_down"] >= 1
    assert counts["peers_up"] - counts["peers_down"] in (0, 1)
    lost = sum(times for kind, times in counts.items() if kind.startswith("lost."))
    assert lost >= 1 and counts["fenced"] >= 1
    assert faults["entries"][0]["at"] >= faults["entries"][-1]["at"]


def test_the_terminal_shows_the_page_s_numbers(
    traffic: Traffic, capsys: pytest.CaptureFixture[str]
) -> None:
    assert top(["--http", traffic.node.http_address, "--screens", "1"]) == 0
    shown = capsys.readouterr().out
    totals = page(traffic)["totals"]
    for name in ("prompt", "usable", "new"):
        value = totals.get(name, totals.get(f"lost.{name}"))
        assert any(line.split()[:2] == [name, str(value)] for line in shown.splitlines()), shown
    assert "aborted 3" in shown and "decode (decode)" in shown


def test_a_story_has_its_hand_over_drawn(
    traffic: Traffic, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(["plain-3", "--target", traffic.node.address]) == 0
    said = capsys.readouterr().out
    transfer = traffic.streams["plain-3"].result().usage.transfer
    assert transfer is not None and f"in {transfer.windows} layer chunks" in said
    rows = [line for line in said.splitlines() if "layers " in line]
    assert len(rows) == min(12, transfer.windows) and all("|" in row for row in rows)
    assert "sender   accepted" in said and "verified" in said
    assert "Receiving" in said and "Decoding" in said
