"""Prompts with pictures over two engines: every greedy token of the goldens, whole and chunked,
resumed inside and behind pictures, pulled back, with early steps and drafts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import Role
from tasuki.engine.scheduling import scheduler as scheduling
from tasuki.engine.scheduling.scheduler import Demand
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import engine_config
from tests.harness.picture_goldens import NAMES, PictureModel, needs_goldens
from tests.harness.picture_prompts import file_submit, golden_case, image_cases
from tests.harness.tiny_pictures import assert_idle, break_release, encoder

pytestmark = needs_goldens

TURNS = [name for name in NAMES if name != "vision-dense-d128"]
"""Checkpoints with the golden turns behind `middle`."""


@contextmanager
def pair(model: str, vision: str = "auto", **settings: object) -> Iterator[EnginePair]:
    """Yield two engines of a golden checkpoint. vision, settings: of the decode engine."""
    config = engine_config(PictureModel.load(model).folder, arena_mib=32)
    sees = replace(config, vision=vision)
    parts = build_parts(config, role=Role.PREFILL), build_parts(sees, role=Role.DECODE)
    with engine_pair(*parts, chunk_tokens=256, settings=settings) as both:
        yield both
        both.prefill.assert_at_rest()
        both.decode.assert_at_rest()
        assert_idle(both.prefill)


def greedy(model: str, case: str) -> list[int]:
    return golden_case(model, case).values["greedy"]


def answer(both: EnginePair, message: m.Submit) -> list[int]:
    """Run a hand-over and its answer to the end; return the tokens."""
    transfer = both.hand_over(message)
    both.ready(transfer, None)
    both.done(transfer)
    both.decode.run()
    return both.decode.tokens(message.request_id)


def wanted(both: EnginePair) -> list[int]:
    """Return the indices of all pictures asked for so far."""
    asked = both.prefill.all_said(m.PicturesWanted)
    return [index for message in asked for index in message.pictures]


@pytest.fixture
def cut_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes each chunk of a prompt as long as asked for."""

    def cut(tokens: int) -> None:
        def share(demands: Sequence[Demand], *_: object) -> list[int]:
            return [min(demand.length, demand.start + tokens) for demand in demands]

        monkeypatch.setattr(scheduling, "share_chunk", share)

    return cut


@pytest.mark.parametrize(("model", "case"), image_cases("middle"))
def test_whole_prompts_and_their_repeats(model: str, case: str) -> None:
    """A decode node without a tower gets every token, and the second time asks for no picture that
    the hit covers."""
    with pair(model, vision="off") as both:
        message = file_submit(model, case)
        assert answer(both, message) == greedy(model, case)
        assert len(wanted(both)) == len({one.digest for one in message.pictures})
        encoder(both.prefill).store.clear()
        before = len(wanted(both))
        again = file_submit(model, case, "again")
        assert answer(both, again) == greedy(model, case)
        usable = both.decode.hit("again").usable_tokens
        left = {one.digest for one in message.pictures if one.run.end > usable}
        assert len(wanted(both)) - before == len(left)


@pytest.mark.parametrize(("model", "case"), image_cases("two"))
@pytest.mark.parametrize("tokens", [64, 37])
def test_chunks(model: str, case: str, tokens: int, cut_at: Callable[[int], None]) -> None:
    cut_at(tokens)
    with pair(model) as both:
        assert answer(both, file_submit(model, case)) == greedy(model, case)
        assert encoder(both.decode).counts.encoded == 0


@pytest.mark.parametrize(("model", "case"), image_cases("middle"))
def test_resumed_at_each_place_of_a_stopped_hand_over(
    model: str, case: str, cut_at: Callable[[int], None]
) -> None:
    """A hand-over is lost inside and behind its pictures. The next one resumes there."""
    cut_at(5)
    message = file_submit(model, case)
    start, end = 20, 30
    if message.pictures:
        start, end = message.pictures[0].start, message.pictures[0].run.end
    # Behind a later stop the forward in flight ends the prompt.
    stops = {at for at in (start + 2, end + 1) if at < len(message.prompt) - 11}
    with pair(model) as both:
        for stop in sorted(stops):
            both.stop_at(file_submit(model, case, f"to-{stop}"), stop)
        encoder(both.prefill).store.clear()
        assert answer(both, message) == greedy(model, case)
        assert both.decode.hit(case).usable_tokens >= min(stops, default=0)


@pytest.mark.parametrize(("model", "case"), image_cases("middle"))
@pytest.mark.parametrize("speculate", ["off", "mtp+tree"])
def test_early_steps_and_drafts_change_no_token(model: str, case: str, speculate: str) -> None:
    # One of the checkpoints has no draft layer.
    source = "tree" if model == "vision-dense-d128" and speculate != "off" else speculate
    with pair(model, speculate=source) as both:
        transfer = both.begin(file_submit(model, case))
        both.join(transfer)
        assert both.decode.tokens(case) == greedy(model, case)
        assert both.decode.engine._handover.early_counters["joined"] == 1


@pytest.mark.parametrize("model", TURNS)
def test_turns_without_a_pull_compute_their_pictures_again(model: str) -> None:
    with pair(model) as both:
        for case in ("middle", "turn2", "turn3"):
            assert answer(both, file_submit(model, case)) == greedy(model, case)


def test_a_lost_hand_over_is_computed_by_the_tower_here() -> None:
    model, case = NAMES[0], "middle"
    with pair(model) as both:
        transfer = both.hand_over(file_submit(model, case))
        both.lose(transfer)
        both.decode.settle()
        assert both.decode.tokens(case) == greedy(model, case)
        assert encoder(both.decode).counts.encoded == 1


def test_a_lost_hand_over_ends_without_a_tower() -> None:
    model, case = NAMES[0], "middle"
    with pair(model, vision="off") as both:
        transfer = both.hand_over(file_submit(model, case))
        both.lose(transfer)
        error = both.decode.rejected(case)
        assert error.kind is m.ErrorKind.NO_TOWER and "--vision auto" in error.message
        # Text is computed here all the same.
        text = file_submit(model, "text")
        both.decode.post(m.PeersChanged(False))
        both.decode.post(text)
        both.decode.run()
        assert both.decode.tokens("text") == greedy(model, "text")


def test_a_defect_as_pictures_are_released_ends_the_transfer(
    cut_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the first token, or as the transfer is given up. No transfer and no memory is left."""
    model, case = NAMES[0], "middle"
    cut_at(5)
    with pair(model) as both:
        break_release(both.prefill, monkeypatch)
        both.stop_at(file_submit(model, case, "lost"), 30)
        assert answer(both, file_submit(model, case)) == greedy(model, case)
        assert caplog.text.count("are not released") >= 2
        assert len(both.prefill.all_said(m.TransferEnded)) == 2


def test_a_state_with_pictures_goes_back_to_a_prefill_node() -> None:
    """The decode node's state behind a picture is handed back. Its runs go with it."""
    model, case = NAMES[0], "middle"
    with pair(model) as both:
        message = file_submit(model, case)
        assert answer(both, message) == greedy(model, case)
        behind = replace(
            file_submit(model, "turn2"),
            request_id=m.RequestId("back"),
            purpose=m.Purpose.HAND_BACK,
            sampling=SamplingParams(max_new_tokens=1),
        )
        both.decode.post(behind)
        both.decode.step()
        back = both.decode.all_said(m.HandoverWanted)[-1]
        assert back.purpose is m.Purpose.HAND_BACK
        ended = len(message.prompt) + len(greedy(model, case)) - 1
        assert back.transfer_request.offered == ended == len(back.prompt) - 1
        assert [one.digest for one in back.pictures] == [one.digest for one in message.pictures]
        both.decode.post(m.HandoverFailed(back.transfer_request.transfer_id, "on purpose"))
        both.decode.run()
