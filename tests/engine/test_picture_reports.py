"""Tests of an engine's reports about pictures: one request's, and the node's counters."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages import PictureOutcome, PictureStage
from tasuki.engine.messages.pictures import MOST_USES
from tasuki.engine.messages.proto import USAGE
from tasuki.engine.pictures.placed import PlacedPictures, placed_pictures
from tasuki.engine.pictures.seen_picture import SeenPicture, pictures_report
from tests.engine.test_picture_files import SIZE, ask, prompt, settle, submit_of
from tests.harness.engines import Lone
from tests.harness.lost_decoders import lose_next
from tests.harness.picture_files import picture_file
from tests.harness.tiny_pictures import VIDEO, Prompt, encoder, seeing_engine

TOKENS = 12
PLACE = "messages[0].content[1]"


@pytest.fixture
def engine() -> Iterator[Lone]:
    found = seeing_engine(prefill_chunk_tokens=64)
    yield found
    encoder(found).close()


def report_of(engine: Lone, name: str) -> m.PicturesReport:
    (ended,) = [said for said in engine.all_said(m.Finished) if said.request_id == name]
    found = ended.usage.pictures
    assert found is not None
    # As `tasuki explain` reads it.
    assert USAGE.from_wire(USAGE.to_wire(ended.usage)).pictures == found
    return found


def only(engine: Lone, name: str) -> m.PictureUse:
    (found,) = report_of(engine, name).each
    return found


def stats(engine: Lone) -> m.PictureStats:
    return encoder(engine).stats(engine.engine._handover.requests)


def counted(engine: Lone) -> dict[str, int]:
    return {name.value: count for name, count in stats(engine).outcomes.items() if count}


def stages(engine: Lone) -> dict[str, int]:
    """Return the number of durations of each stage."""
    return {
        stage.value: sum(spread.counts)
        for stage, spread in stats(engine).seconds.items()
        if sum(spread.counts)
    }


def test_outcomes_of_one_picture(engine: Lone) -> None:
    content = picture_file(*SIZE)
    ask(engine, prompt(content), "first")
    first = only(engine, "first")
    assert (first.outcome, first.kind, first.place) == (PictureOutcome.ENCODED, "image", PLACE)
    assert (first.start, first.tokens, first.bytes) == (71, TOKENS, len(content))
    assert min(first.decode_seconds, first.resize_seconds, first.tower_seconds) > 0
    assert first.wait_seconds >= first.tower_seconds
    decoded = first.decode_at + first.decode_seconds + first.resize_seconds
    assert 0 < first.decode_at < decoded <= first.tower_at
    assert first.tower_at + first.tower_seconds <= first.ready_at
    other = prompt(content)
    other.tokens[0] += 1
    ask(engine, other, "kept")
    assert only(engine, "kept") == replace(
        first,
        outcome=PictureOutcome.KEPT,
        decode_seconds=0.0,
        resize_seconds=0.0,
        tower_seconds=0.0,
        wait_seconds=0.0,
        decode_at=0.0,
        tower_at=0.0,
        ready_at=0.0,
    )
    ask(engine, prompt(content), "skipped")
    assert only(engine, "skipped").outcome is PictureOutcome.SKIPPED
    assert report_of(engine, "skipped").usable_tokens == TOKENS
    assert report_of(engine, "first").usable_tokens == 0
    assert counted(engine) == {"encoded": 1, "kept": 1, "skipped": 1}
    assert stages(engine) == {"decode": 1, "resize": 1, "tower": 1, "wait": 1}


def test_answers_to_one_prompt_count_its_picture_once(engine: Lone) -> None:
    made = prompt(picture_file(*SIZE))
    forks = tuple(m.Fork(m.RequestId(f"r-{number}"), number) for number in (1, 2))
    engine.post(replace(submit_of(made), forks=forks))
    engine.run()
    settle(engine)
    for name in ("r", "r-1", "r-2"):
        assert only(engine, name).outcome is PictureOutcome.ENCODED
    assert counted(engine) == {"encoded": 1}


def test_requests_that_wait_for_one_encode(engine: Lone) -> None:
    """Their prompts differ before the picture, so none can resume from the other."""
    content = picture_file(*SIZE)
    other = prompt(content)
    other.tokens[0] += 1
    engine.post(replace(submit_of(other), request_id=m.RequestId("other")))
    ask(engine, prompt(content), "first")
    outcomes = {only(engine, name).outcome for name in ("first", "other")}
    assert outcomes == {PictureOutcome.ENCODED, PictureOutcome.KEPT}
    assert min(only(engine, name).wait_seconds for name in ("first", "other")) > 0
    assert counted(engine) == {"encoded": 1, "kept": 1}


def test_refused_and_lost_pictures(engine: Lone) -> None:
    ask(engine, prompt(b"words"), "refused")
    assert counted(engine) == {"refused": 1}
    ask(engine, prompt(picture_file(*SIZE)), "first")
    lose_next(encoder(engine)._files._decoders)
    ask(engine, prompt(picture_file(*SIZE), "b", behind=81), "lost")
    assert counted(engine) == {"refused": 1, "encoded": 1, "lost": 1}
    assert stats(engine).decoders_lost == 1


def test_an_aborted_request_has_not_reached_its_picture(engine: Lone) -> None:
    engine.post(submit_of(prompt(picture_file(*SIZE))))
    for _ in range(4):
        engine.step()
    assert stats(engine).media_bytes == len(picture_file(*SIZE))
    engine.post(m.Abort(m.RequestId("r")))
    engine.run()
    assert only(engine, "r").outcome is PictureOutcome.UNREACHED
    assert counted(engine) == {} and stats(engine).media_bytes == 0


def test_bytes_of_rows(engine: Lone) -> None:
    budget = sum(stats(engine).row_bytes.values())
    assert stats(engine).row_bytes == {"pinned": 0, "kept": 0, "free": budget}
    ask(engine, prompt(picture_file(*SIZE)), "first")
    kept = encoder(engine).store.nbytes
    assert stats(engine).row_bytes == {"pinned": 0, "kept": kept, "free": budget - kept}
    assert kept > 0


def test_counters_are_in_the_engines_reply(engine: Lone) -> None:
    ask(engine, prompt(picture_file(*SIZE)), "first")
    engine.post(m.CountersQuery(1))
    engine.run()
    (reply,) = engine.all_said(m.StatsReply)
    assert reply.pictures is not None
    assert reply.pictures.outcomes[PictureOutcome.ENCODED] == 1
    assert sum(reply.pictures.seconds[PictureStage.TOWER].counts) == 1


def placed_of(made: Prompt) -> PlacedPictures:
    shape = encoder(seeing_engine()).shape
    found = placed_pictures(submit_of(made), shape)
    assert found is not None
    return found


def test_tokens_by_kind_and_a_hit_inside_a_picture() -> None:
    made = Prompt().text([1, 2]).picture("a", 2, 3).picture("b", 1, 5, kind=VIDEO).text([3])
    placed = placed_of(made)
    hit = m.HitBreakdown(len(made.tokens), 0, placed.runs[1].start + 2, {}, None)
    report = pictures_report(placed, {}, hit, is_here=False)
    assert report is not None
    assert (report.image_tokens, report.video_tokens, report.usable_tokens) == (6, 5, 8)
    assert [use.outcome.value for use in report.each] == ["skipped", "elsewhere"]
    assert [use.kind for use in report.each] == ["image", "video"]


def test_a_report_is_bounded() -> None:
    made = Prompt().text([1])
    for number in range(MOST_USES + 6):
        made.picture(str(number), 1, 1)
    report = pictures_report(
        placed_of(made), {MOST_USES + 5: SeenPicture(PictureOutcome.KEPT)}, None, is_here=True
    )
    assert report is not None and report.count == report.image_tokens == MOST_USES + 6
    assert len(report.each) == MOST_USES
    assert report.each[-1].outcome is PictureOutcome.KEPT
    assert report.each[0].outcome is PictureOutcome.UNREACHED
