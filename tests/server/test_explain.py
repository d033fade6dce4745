"""Tests of `explain`: it repeats the figures reported to the client, and says so if nothing is
known."""

from dataclasses import replace

import pytest

from tasuki.cli.explain import main
from tasuki.cli.request_story import story
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.engine.messages import EvictedCheckpoint, Eviction
from tasuki.engine.messages.proto import EVICTION, FINISHED
from tasuki.proto import inference_pb2 as pb
from tasuki.server.request_records import RequestLog
from tests.harness.grpc_fixtures import running_front, usage
from tests.harness.refusals import refused_as


def test_a_finished_request_is_told_as_its_client_was(capsys: pytest.CaptureFixture[str]) -> None:
    with running_front() as front, Client(front.address) as client:
        answer = client.generate(Prompt(token_ids=[5, 6, 7, 8]), request_id="r1").result()
        told = client.explain("r1")
        assert told.finished.usage.hit.usable_tokens == answer.usage.hit.usable_tokens == 2
        assert 0 <= told.ended_seconds_ago < 10
        assert main(["r1", "--target", front.address]) == 0
    said = capsys.readouterr().out
    for part in ("request r1", ": stop", "4 tokens, 3 with KV", "2 usable", "turn_end", "new"):
        assert part in said
    assert "75% hidden" in said and "prefill  p0" in said


def test_a_hit_is_shown_as_the_parts_that_it_resumed_from() -> None:
    def lines(usable: int) -> list[str]:
        hit = m.HitBreakdown(200, usable, usable, {"new": 200 - usable}, None)
        ended = m.Finished(m.RequestId("r"), m.FinishReason.STOP, replace(usage(4, 1), hit=hit))
        sizes = {"page.kv": 2**20, "page.index": 2**19, "slot.ssm": 3 * 2**20}
        report = pb.ExplainResponse(
            request_id="r", finished=FINISHED.to_wire(ended), part_bytes=sizes
        )
        return [line for line in story(report) if line.startswith("  resumed")]

    (line,) = lines(65)
    assert "2 pages: index 1.00 MiB, kv 2.00 MiB" in line or "kv 2.00 MiB, index 1.00 MiB" in line
    assert "a state slot: ssm 3.00 MiB" in line
    assert lines(0) == []


def bid(node: str, wait: float, cost: float, *, chosen: bool = False) -> m.PrefillBid:
    return m.PrefillBid(node, f"{node}:50051", 4096, 0.25, wait, 0.0, cost, chosen)


def test_each_candidate_s_cost_is_shown_and_why_one_was_chosen() -> None:
    bids = (bid("p1", 7.5, 11.5), bid("p2", 0.125, 4.125, chosen=True))
    choice = m.PrefillChoice("moved", bids, 2, 4096, 1.5, "p1:50051")
    ended = replace(usage(4, 1), prefill_choice=choice)
    report = pb.ExplainResponse(
        request_id="r",
        finished=FINISHED.to_wire(m.Finished(m.RequestId("r"), m.FinishReason.STOP, ended)),
    )
    lines = [line for line in story(report) if "cost" in line or "node " in line]
    assert len(lines) == 3
    head, first, second = lines
    assert "second choice" in head and "p1:50051 had it before" in head and "1.500 s" in head
    assert "  p1 p1:50051" in first and "wait 7.500 s" in first and "11.500" in first
    assert "> p2 p2:50051" in second and "prefill 0.250 s behind 4096 usable tokens" in second


def test_each_target_is_shown_as_kept_or_missed() -> None:
    ended = replace(usage(4, 5), targets=m.Targets(60.0, 1e-9, 61.0))
    ended = replace(ended, time_to_first_token=0.2, seconds=1.0)
    finished = FINISHED.to_wire(m.Finished(m.RequestId("r"), m.FinishReason.STOP, ended))
    (line,) = [
        line
        for line in story(pb.ExplainResponse(request_id="r", finished=finished))
        if "targets" in line
    ]
    assert "the first token within 60000 ms (kept)" in line
    assert "each after it within 1e-06 ms (missed)" in line
    assert "the whole answer within 61000 ms (kept)" in line


def test_drafts_are_shown_where_there_were_any() -> None:
    for drafted in (0, 7):
        uses = (m.DraftUse("mtp", (4, 2), (2, 1)), m.DraftUse("tree", (1,), (0,)))
        ended = replace(
            usage(4, 5), completion_tokens=10, drafted_tokens=drafted, accepted_tokens=drafted // 2
        )
        ended = replace(ended, drafts=uses) if drafted else ended
        finished = FINISHED.to_wire(m.Finished(m.RequestId("r"), m.FinishReason.STOP, ended))
        lines = [
            line
            for line in story(pb.ExplainResponse(request_id="r", finished=finished))
            if "drafts" in line or "by place" in line
        ]
        told = [
            "  drafts   3 of 7 tokens were accepted, 1.2 of a step",
            "    mtp        by place 2 of 4, 1 of 2",
            "    tree       by place 0 of 1",
        ]
        assert lines == (told if drafted else [])


def test_a_refused_request_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with running_front() as front, Client(front.address) as client:
        front.engine.reject = m.RequestError(m.ErrorKind.TOO_LONG, "shorten the prompt")
        with pytest.raises(ClientError):
            client.generate(Prompt(token_ids=[5]), request_id="r2").result()
        assert main(["r2", "--target", front.address]) == 0
    assert "refused\n  shorten the prompt" in capsys.readouterr().out


def test_a_request_nobody_remembers_is_a_typed_error() -> None:
    with (
        running_front() as front,
        Client(front.address) as client,
        refused_as("unknown_request", "not among the requests"),
    ):
        client.explain("nobody")


def test_the_log_forgets_the_oldest_and_keeps_the_last_of_an_id() -> None:
    now = [0.0]
    log = RequestLog(lambda: now[0], capacity=2)
    for second, name in enumerate(("a", "b", "a", "c")):
        now[0] = float(second)
        log.add(m.Finished(m.RequestId(name), m.FinishReason.STOP, usage(4, second)))
    now[0] = 10.0
    assert log.find("b") is None
    found = log.find("a")
    assert found is not None and found[1] == 8.0
    assert isinstance(found[0].end, m.Finished) and found[0].end.usage.completion_tokens == 2


def test_what_was_lost_to_whom_and_what_was_given_up_for_it() -> None:
    thief = Eviction(9, "checkpoint", "turn_end", 640, 1.0, 0.25, "thief")
    victims = [Eviction(n, "pages", None, 64 * n, 0.5, None, "me") for n in range(12)]
    hit = m.HitBreakdown(
        900,
        700,
        128,
        {"checkpoint_evicted": 512, "new": 260},
        None,
        EvictedCheckpoint(640, 3.5, thief),
    )
    usage = m.Usage(900, 5, hit, None, "local", False, 0.2, 1.0)
    end = m.Finished(m.RequestId("me"), m.FinishReason.STOP, usage)
    told = pb.ExplainResponse(
        request_id="me",
        finished=FINISHED.to_wire(end),
        life=[pb.LifeMark(state="Prefilling", at_seconds=0.1)],
        took=[EVICTION.to_wire(victim) for victim in victims],
    )
    said = "\n".join(story(told))
    assert "a state of 640 tokens, taken by thief, held to be worth 2.50e-01 a page" in said
    assert "3.5 slots were given up since" in said
    assert "took     12 places" in said and "and 2 more" in said
    assert "pages at 64 tokens, 0.50 slots\n" in said
    assert "life     Waiting 100.0 ms" in said


def test_the_log_remembers_for_whom_room_was_made() -> None:
    log = RequestLog(lambda: 0.0, capacity=1)
    log.evicted(m.Evicted((Eviction(1, "tail", None, 70, 1.0, None, "a"),)))
    log.evicted(m.Evicted((Eviction(2, "tail", None, 71, 1.0, None, None),)))
    assert [eviction.sequence for eviction in log.took("a")] == [1] and log.took("b") == ()
    log.evicted(m.Evicted((Eviction(3, "tail", None, 72, 1.0, None, "b"),)))
    assert log.took("a") == ()


def test_the_log_holds_so_many_evictions_and_forgets_the_oldest_requests() -> None:
    log = RequestLog(lambda: 0.0, evictions=400)
    for name, first in (("a", 0), ("b", 300), ("c", 600)):
        taken = [Eviction(n, "pages", None, 64, 1.0, None, name) for n in range(first, first + 300)]
        log.evicted(m.Evicted(tuple(taken)))
    # The log keeps the last 256 of each request, but not of two such requests.
    assert log.took("a") == log.took("b") == ()
    assert [eviction.sequence for eviction in log.took("c")] == list(range(644, 900))
    log.evicted(m.Evicted((Eviction(900, "pages", None, 64, 1.0, None, "d"),)))
    assert len(log.took("c")) == 256 and len(log.took("d")) == 1
