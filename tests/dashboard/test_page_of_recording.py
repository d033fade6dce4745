"""Tests of the page over a recording. It draws a hand-over with a wait at the layer barrier, its
hidden and visible parts, and the pull before it. It also draws the eviction that cost a turn."""

from pathlib import Path

from tasuki.cli.recording.file_format import RecordingWriter
from tasuki.dashboard.history.events import event_of, pools_event
from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tasuki.engine.messages import EvictedCheckpoint, Eviction
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.transfer.reports import (
    ArrivedChunk,
    BarrierWait,
    HandoverTimeline,
    Phase,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SentChunk,
)
from tests.harness.daemons import random_prompt
from tests.harness.fleet_process import replaying
from tests.harness.imagined_traffic import traffic
from tests.harness.pages import Browser, opened

ORDER = (Phase.ACCEPTED, Phase.GRANTED, Phase.READY, Phase.DONE)
SENT = tuple(
    SentChunk(number, number, (finished,), 0, 2, number == 1, 512, finished, finished, flushed)
    for number, (finished, flushed) in enumerate(((0.2, 0.3), (0.4, 0.6)))
)
LANDED = tuple(
    ArrivedChunk(window.sequence, window.flushed_at, window.flushed_at + 0.05) for window in SENT
)


def phases(*names: Phase) -> tuple[PhaseMark, ...]:
    return tuple(PhaseMark(name, 0.1 * number) for number, name in enumerate(names))


HANDED = HandoverTimeline(
    SenderTrack(phases(*ORDER), SENT),
    ReceiverTrack(phases(*ORDER, Phase.VERIFIED), LANDED, (BarrierWait(1, 0.45, 0.65),)),
)
PULLED = HandoverTimeline(
    SenderTrack(phases(Phase.GRANTED, Phase.ACCEPTED, Phase.DONE), SENT[:1]),
    ReceiverTrack(phases(Phase.GRANTED, Phase.DONE, Phase.VERIFIED), LANDED[:1], ()),
)


def usage(name: str, usable: int) -> m.Finished:
    gone = EvictedCheckpoint(64, 2.0, Eviction(3, "checkpoint", "turn_end", 64, 1.0, 0.5, "thief"))
    lost = gone if usable == 0 else None
    causes = {"new": 36, **({"checkpoint_evicted": 64} if lost else {})}
    hit = m.HitBreakdown(100, 64, usable, causes, None, lost)
    sent = m.TransferReport(1024, 2, 2, 0.1, 0.2, HANDED)
    pulled = m.PullReport(64, 512, 0.3, PULLED)
    told = m.Usage(100, 5, hit, sent, "prefill", False, 0.2, 1.0, pulled)
    return m.Finished(m.RequestId(name), m.FinishReason.STOP, told)


def write_recording(path: Path) -> None:
    prompt = random_prompt(100, 1)
    with RecordingWriter(path, {"node": "decode", "role": "decode"}) as kept:
        for number, (name, usable) in enumerate((("first", 64), ("second", 0))):
            asked = m.Submit(m.RequestId(name), prompt, SamplingParams(), session="session 1")
            for later, message in ((0, asked), (5, usage(name, usable))):
                kept.add({**event_of(message), "at": 1000.0 + 60 * number + later})


def test_a_recording_is_drawn_as_its_node_was(browser: Browser, tmp_path: Path) -> None:
    write_recording(tmp_path / "kept.jsonl.gz")
    with (
        replaying(tmp_path / "kept.jsonl.gz") as address,
        opened(browser, address, "/#handovers") as seen,
    ):
        # With the stream's first message, the page draws the view again.
        seen.page.wait_for_selector("body[data-ended]")
        seen.page.click("#handover-rows tr[data-key=second]")
        seen.page.wait_for_selector("#gantt [data-track=puller]")

        def drawn(track: str) -> dict[str, int]:
            bars = seen.page.locator(f"#gantt [data-track={track}] g rect")
            kinds = [bars.nth(index).get_attribute("class") or "" for index in range(bars.count())]
            return {kind: kinds.count(kind) for kind in kinds}

        # The first layer chunk left while the second layer was computed, the second chunk after it.
        assert drawn("sender") == {"hidden-time": 1, "exposed-time": 1, "tick": 2}
        assert drawn("receiver") == {"landed": 2, "wait": 1}
        assert drawn("giver") == {"exposed-time": 1} and drawn("puller") == {"landed": 1}
        assert "waited for layer 1" in seen.page.content()
        marks = seen.page.locator("#gantt [data-track=receiver] [data-phase]").all_text_contents()
        assert marks == [phase.name.lower() for phase in (*ORDER, Phase.VERIFIED)]

        seen.show("sessions")
        seen.page.wait_for_selector("#session-rows [data-request]")
        assert seen.page.locator("#session-rows text", has_text="▼").count() == 1
        assert seen.page.locator("#session-rows [tabindex='0']").count() == 1
        seen.page.focus("#session-rows [tabindex='0']")
        for key, request in (("ArrowLeft", "first"), ("ArrowRight", "second")):
            seen.page.keyboard.press(key)
            assert seen.page.evaluate("document.activeElement.dataset.request") == request
        seen.page.keyboard.press("Enter")
        assert "thief took its place" in seen.text("#turn")
        seen.show("tree")
        seen.page.wait_for_selector("#icicle:has-text('a recording holds no tree')")
        assert not seen.foreign


def test_a_sample_that_is_old_is_marked_with_its_age(browser: Browser, tmp_path: Path) -> None:
    """Record a long step: requests have arrived, and the counters are older than the step."""
    prompt = random_prompt(100, 1)
    pool = {"free": 9, "tree": 0, "pinned": 0, "working": 0, "granted": 0, "quarantined": 0}
    slabs = {"free": 9, "pages": 0, "slots": 0}
    stats = m.StatsReply(1, pool, pool, slabs, {}, {}, {m.RequestPhase.DECODING: 1})
    with RecordingWriter(tmp_path / "old.jsonl.gz", {"node": "n", "role": "fused"}) as kept:
        kept.add({**pools_event(NodeReport(stats), 0), "at": 1000.0})
        for number in range(3):
            asked = m.Submit(m.RequestId(f"r{number}"), prompt, SamplingParams())
            kept.add({**event_of(asked), "at": 1030.0})
    with replaying(tmp_path / "old.jsonl.gz") as address, opened(browser, address) as seen:
        seen.page.wait_for_selector("#figures .stale")
        assert "as of 30 s ago; 3 asked for now" in seen.text("#figures .stale")
        assert "the engine has ended no step for 30 s" in seen.text("#figures")
        seen.show("handovers")
        seen.page.wait_for_selector("caption:has-text('No hand-over is remembered')")
        seen.show("faults")
        seen.page.wait_for_selector("caption:has-text('Nothing has gone wrong since the start.')")
        assert not seen.complaints


def test_five_busy_minutes_are_drawn_whole(browser: Browser, tmp_path: Path) -> None:
    events = list(traffic(1_700_000_000.0))
    about = {"node": "decode-1", "role": "decode", "model": "qwen3.5-9b", "version": "0.1.0"}
    with RecordingWriter(tmp_path / "busy.jsonl.gz", about) as kept:
        for event in events:
            kept.add(event)
    usages = [event["usage"] for event in events if event["kind"] == "finished"]
    usable = sum(usage["hit"]["usable_tokens"] for usage in usages)
    with replaying(tmp_path / "busy.jsonl.gz") as address, opened(browser, address) as seen:
        seen.page.wait_for_selector("[data-total=prompt]")
        assert seen.number("[data-total=prompt]") == sum(usage["prompt_tokens"] for usage in usages)
        assert seen.number("[data-total=usable]") == usable > 0
        assert "slots would recover" in seen.text("#what-if")
        assert "ready" in seen.text("#figures") and "tok/s" in seen.text("#figures")
        assert seen.text("#figures").count("p95") == 2 and " running" in seen.text("#figures")
        seen.show("sessions")
        seen.page.wait_for_selector("#session-rows [data-request]")
        assert seen.page.locator("#session-rows [data-request]").count() == len(usages)
        seen.page.locator("#session-rows [data-request]").nth(4).click()
        seen.show("requests")
        seen.page.locator("#request-rows tbody tr").nth(2).click()
        seen.page.wait_for_selector("#request dt:has-text('life')")
        assert {"agents", "chat"} <= set(seen.text("#request-rows").split())
        assert not seen.complaints and not seen.foreign
