"""Tests of what clients and operators see of pictures: usage, `tasuki explain`, records, spans."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tasuki.cli.explain import main as explain
from tasuki.cli.picture_story import pictures_story
from tasuki.dashboard.history.events import event_of
from tasuki.dashboard.history.node_history import RequestHistory
from tasuki.engine import messages as m
from tasuki.engine.messages import PictureOutcome
from tasuki.server.request_records import RequestLog
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ANTHROPIC, Reply, ask
from tests.harness.picture_answers import CASES, CHAT, FOLDER, messages_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running
from tests.harness.waiting import until
from tests.server.test_picture_turns import block_of, input_of

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
from tests.harness.otlp_collector import Collector, SeenSpan, running_collector

pytestmark = needs_goldens
HIT = {"x-tasuki-hit": "1"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e0001"


@dataclass
class Watched:
    node: Node
    collector: Collector


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        own = ("--otlp-endpoint", collector.url)
        with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP, *own)) as node:
            yield Watched(node, collector)


def turn(watched: Watched, name: str, salt: str, **headers: str) -> Reply:
    case = CASES[name]
    body = {
        "messages": messages_of(case),
        "max_tokens": len(case["greedy"]),
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
    }
    reply = ask(watched.node.http_address, "POST", CHAT, body, {**HIT, **headers})
    assert reply.status == 200, reply.body
    return reply


def image_tokens(name: str) -> int:
    return sum(run["tokens"] for run in CASES[name]["runs"])


def details(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = reply.json["usage"]["prompt_tokens_details"]
    return found


def test_usage_counts_the_tokens_of_pictures(watched: Watched) -> None:
    first, again = (turn(watched, "middle", "usage") for _ in range(2))
    assert details(first)["image_tokens"] == details(again)["image_tokens"] == 12
    assert "video_tokens" not in details(first)
    assert first.json["usage"]["prompt_tokens"] == len(CASES["middle"]["prompt"])
    hybrid = details(first)["hybrid"]
    assert (hybrid["image_tokens"], hybrid["image_tokens_usable"]) == (12, 0)
    assert hybrid["pictures"] == {"encoded": 1}
    second = turn(watched, "turn2", "usage")
    hybrid = details(second)["hybrid"]
    assert hybrid["image_tokens"] == details(second)["image_tokens"] == image_tokens("turn2")
    assert hybrid["image_tokens_usable"] == 12
    assert hybrid["pictures"] == {"skipped": 1, "encoded": 1}


def test_usage_of_text_has_no_field_of_pictures(watched: Watched) -> None:
    found = details(turn(watched, "text", "text"))
    assert not {"image_tokens", "video_tokens"} & found.keys()
    assert not {"pictures", "image_tokens"} & found["hybrid"].keys()


def test_a_stream_counts_them_too(watched: Watched) -> None:
    body = {
        "messages": messages_of(CASES["two"]),
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reply = ask(watched.node.http_address, "POST", CHAT, body)
    usage = reply.events[-1]["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == image_tokens("two")


def test_messages_and_responses_count_them(watched: Watched) -> None:
    address, (only,) = watched.node.http_address, CASES["middle"]["messages"]
    name = ask(address, "GET", "/v1/models").json["data"][0]["id"]
    blocks = [block_of(part) for part in only["content"]]
    asked = {"model": name, "max_tokens": 2, "messages": [{"role": "user", "content": blocks}]}
    reply = ask(address, "POST", "/v1/messages", asked, {**ANTHROPIC, **HIT})
    usage = reply.json["usage"]
    assert usage["input_tokens_details"] == {"image_tokens": 12}
    assert usage["hybrid"]["image_tokens"] == 12
    parts = [input_of(part) for part in only["content"]]
    given = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 2}
    reply = ask(address, "POST", "/v1/responses", given, HIT)
    found = reply.json["usage"]["input_tokens_details"]
    assert found["image_tokens"] == found["hybrid"]["image_tokens"] == 12


def test_explain_and_the_records_tell_of_each_picture(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    turn(watched, "middle", "story")
    turn(watched, "turn2", "story", **{"x-request-id": "told"})
    assert explain(["told", "--target", watched.node.address]) == 0
    said = capsys.readouterr().out
    tokens = image_tokens("turn2")
    assert f"pictures 2 of {tokens} image tokens, 12 of them usable: 1 skipped, 1 encoded" in said
    skipped, encoded = (line for line in said.splitlines() if "KiB: " in line)
    assert "messages[0].content[1]" in skipped and "the hit covers it" in skipped
    assert " ms" not in skipped
    for stage in ("decode", "resize", "tower", "waited"):
        assert f"{stage} " in encoded and " ms" in encoded
    record = ask(watched.node.http_address, "GET", "/debug/requests/told").json
    each = record["usage"]["pictures"]["each"]
    assert [picture["outcome"] for picture in each] == ["skipped", "encoded"]
    assert each[1]["tower_seconds"] > 0 and each[0]["bytes"] > 0


def test_spans_of_decode_and_tower(watched: Watched) -> None:
    turn(watched, "middle", "spans", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")

    def seen() -> list[SeenSpan]:
        return watched.collector.spans(TRACE)

    until(lambda: any(span.name == "chat vision-dense" for span in seen()), seen)
    named = {span.name: span for span in seen()}
    request = named["chat vision-dense"]
    assert request.attributes["tasuki.pictures.encoded"] == 1
    assert request.attributes["tasuki.image_tokens"] == 12
    decode, tower = named["decode picture"], named["encode picture"]
    assert decode.parent == tower.parent == request.id
    assert decode.began < decode.ended <= tower.began < tower.ended <= request.ended
    assert tower.attributes["tasuki.picture.place"] == "messages[0].content[1]"
    assert tower.attributes["tasuki.picture.tokens"] == 12


def use(outcome: PictureOutcome, start: int, tokens: int, place: str = "") -> m.PictureUse:
    return m.PictureUse(outcome, "image", place, start, tokens, 2048)


def test_a_story_draws_the_prompt_and_lists_the_last_pictures() -> None:
    each = (use(PictureOutcome.SKIPPED, 0, 30), use(PictureOutcome.ENCODED, 90, 30, "here"))
    lines = pictures_story(m.PicturesReport(5, 55, 5, 30, each), 120)
    assert lines[0] == (
        "  pictures 5 of 55 image and 5 video tokens, 30 of them usable: 1 skipped, 1 encoded, 3 "
        "earlier ones not listed"
    )
    bar = lines[1].split()[0]
    assert bar == "s" * 15 + "." * 30 + "E" * 15
    assert lines[2].startswith("    image at token 0") and "30 tokens, 2.0 KiB" in lines[2]
    assert lines[3].startswith("    here")


def ended(number: int, pictures: int) -> m.Finished:
    each = tuple(use(PictureOutcome.KEPT, place, 1) for place in range(pictures))
    report = m.PicturesReport(pictures, pictures, 0, 0, each)
    usage = m.Usage(pictures, 1, None, None, "local", False, 0.0, 0.0, pictures=report)
    return m.Finished(m.RequestId(f"r{number}"), m.FinishReason.STOP, usage)


def pictures_of(log: RequestLog, number: int) -> m.PicturesReport:
    found = log.find(f"r{number}")
    assert found is not None and isinstance(found[0].end, m.Finished)
    report = found[0].end.usage.pictures
    assert report is not None
    return report


def test_long_lists_of_pictures_are_kept_for_the_last_requests() -> None:
    log = RequestLog(lambda: 0.0, timelines=2)
    for number in range(3):
        log.add(ended(number, 40))
    assert [len(pictures_of(log, number).each) for number in range(3)] == [4, 40, 40]
    assert pictures_of(log, 0).count == 40


def test_the_page_lists_requests_without_each_picture() -> None:
    history = RequestHistory()
    for number in range(200):
        history.submitted({"request": f"r{number}", "session": None, "at": 0.0})
        history.ended({"at": 1.0, **event_of(ended(number, 40))})
    (row,) = history.latest(1)
    assert row["usage"]["pictures"]["each"] == []
    assert row["usage"]["pictures"]["outcomes"] == {"kept": 40}

    def shown(number: int) -> int:
        record = history.find(f"r{number}")
        assert record is not None
        return len(record["usage"]["pictures"]["each"])

    assert (shown(0), shown(199)) == (0, 16)
