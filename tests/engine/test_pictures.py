"""Pictures in an engine: answers, hits, rows and their lives, refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_pictures
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.messages.types import packer, reader_of
from tasuki.engine.pictures.row_store import RowsGone, RowStore
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.scheduling import scheduler as scheduling
from tasuki.engine.scheduling.scheduler import Demand
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.vision.tower import Encode, VisionTower
from tasuki.pycache.keys import PictureDigest
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.engines import Lone, prompt, submit
from tests.harness.tiny_pictures import (
    END,
    IMAGE,
    ROW_BYTES,
    START,
    TOWER,
    VIDEO,
    Prompt,
    assert_idle,
    break_release,
    encoder,
    seeing_engine,
    seeing_parts,
)

Cut = Callable[[int], None]


def text(length: int, seed: int = 0) -> list[int]:
    """Return text without a special token."""
    return [token % 120 for token in prompt(length, seed)]


def ask(engine: Lone, made: Prompt, name: str = "r", count: int = 8, **changes: Any) -> list[int]:
    return engine.ask(name, made.tokens, count, pictures=tuple(made.pictures), **changes)


def post(engine: Lone, made: Prompt, name: str = "r", count: int = 8, **changes: Any) -> None:
    engine.post(submit(name, made.tokens, count, pictures=tuple(made.pictures), **changes))


def without_end(made: Prompt) -> Prompt:
    """Return the prompt without its last token, which closes a picture."""
    assert made.tokens.pop() == END
    return made


MADE: dict[str, Callable[[], Prompt]] = {
    "short": lambda: Prompt().text(text(20)).picture("a", 2, 3).text(text(9, 1)),
    "first": lambda: Prompt().picture("a", 9, 11).text(text(5, 1)),
    "last": lambda: Prompt().text(text(50)).picture("a", 9, 11),
    "open": lambda: without_end(Prompt().text(text(50)).picture("a", 9, 11)),
    "several": lambda: (
        Prompt()
        .text(text(30))
        .picture("a", 9, 11)
        .picture("b", 1, 20, VIDEO)
        .text(text(70, 1))
        .picture("a", 9, 11)
        .text(text(40, 2))
    ),
}


Answer = list[tuple[int, float]]
"""Tokens and their logprobs. Tokens alone would hide a small mistake: the random model repeats
itself."""


def answer(engine: Lone, name: str = "r") -> Answer:
    said = [token for token in engine.all_said(m.TokenOut) if token.request_id == name]
    return [(token.token, token.logprob) for token in said]


def answer_to(made: Prompt, count: int = 8, **changes: Any) -> Answer:
    """Return the oracle's answer: a fresh engine, the whole prompt in one chunk."""
    engine = seeing_engine(prefill_chunk_tokens=4096)
    ask(engine, made, count=count, **changes)
    return answer(engine)


@cache
def alone(name: str) -> Answer:
    return answer_to(MADE[name]())


def difference(one: Answer, other: Answer) -> float:
    """Return how far the logprobs are apart; infinite if a token differs."""
    if [token for token, _ in one] != [token for token, _ in other]:
        return float("inf")
    return max(abs(a - b) for (_, a), (_, b) in zip(one, other, strict=True))


def assert_alike(one: Answer, other: Answer) -> None:
    assert one and difference(one, other) < ALIKE


ALIKE = 1e-4


@pytest.fixture
def cut_at(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Return a function that makes each chunk of one prompt as long as asked for."""

    def cut(tokens: int) -> None:
        def share(demands: Sequence[Demand], *_: object) -> list[int]:
            return [min(demand.length, demand.start + tokens) for demand in demands]

        monkeypatch.setattr(scheduling, "share_chunk", share)

    return cut


@pytest.mark.parametrize("name", MADE)
def test_pictures_change_the_answer(name: str) -> None:
    """Without this, equal answers below would show nothing."""
    made = MADE[name]()
    inverted = replace_pictures(made, lambda one: replace(one, levels=255 - one.levels))
    assert difference(answer_to(inverted), alone(name)) > 20 * ALIKE
    # Rows and columns exchanged: other positions.
    turned = replace_pictures(made, lambda one: replace(one, rows=one.columns, columns=one.rows))
    assert difference(answer_to(turned), alone(name)) > 20 * ALIKE


def replace_pictures(made: Prompt, change: Callable[[m.PromptPicture], m.PromptPicture]) -> Prompt:
    changed = Prompt().text(made.tokens)
    changed.pictures = [change(picture) for picture in made.pictures]
    return changed


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("chunk", [64, 128])
def test_chunks_answer_as_the_whole_prompt(name: str, chunk: int) -> None:
    engine = seeing_engine(prefill_chunk_tokens=chunk)
    ask(engine, MADE[name]())
    assert_alike(answer(engine), alone(name))
    engine.assert_at_rest()
    assert_idle(engine)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("tokens", [1, 7, 37])
def test_chunks_cut_anywhere_answer_as_the_whole_prompt(
    name: str, tokens: int, cut_at: Cut
) -> None:
    expected = alone(name)
    cut_at(tokens)
    engine = seeing_engine()
    ask(engine, MADE[name]())
    assert_alike(answer(engine), expected)
    assert_idle(engine)


def test_prompts_of_one_batch_answer_as_alone() -> None:
    engine = seeing_engine(prefill_chunk_tokens=128)
    for name in MADE:
        post(engine, MADE[name](), name)
    words = text(100, 5)
    engine.post(submit("words", words, 8))
    engine.run()
    for name in MADE:
        assert_alike(answer(engine, name), alone(name))
    assert engine.tokens("words") == seeing_engine().ask("words", words, 8)
    assert_idle(engine)


def test_a_text_prompt_answers_as_on_a_node_without_a_tower() -> None:
    words = text(150, 5)
    seeing = seeing_engine()
    blind = seeing_engine(replace(seeing_parts(), tower=None, sight=None))
    assert seeing.ask("r", words, 8) == blind.ask("r", words, 8)
    assert seeing.tree() == blind.tree()


def test_another_picture_behind_the_same_text_is_no_hit() -> None:
    engine = seeing_engine()
    first = Prompt().text(text(70)).picture("a", 9, 11).text(text(40, 1))
    second = Prompt().text(text(70)).picture("b", 9, 11).text(text(40, 1))
    ask(engine, first, "first")
    ask(engine, second, "second")
    assert engine.hit("second").kv_tokens <= 70
    assert_alike(answer(engine, "second"), answer_to(second))
    # The same place, text only, with the placeholders' ids refused.
    ask(engine, first, "again")
    assert engine.hit("again").usable_tokens > 70 + 99


def test_a_covering_hit_encodes_nothing() -> None:
    engine = seeing_engine()
    made = MADE["several"]()
    ask(engine, made, "first")
    assert encoder(engine).counts.encoded == 2
    turn = Prompt().text(made.tokens).text(engine.tokens("first")).text(text(10, 3))
    turn.pictures = made.pictures
    encoder(engine).store.clear()
    ask(engine, turn, "second")
    assert engine.hit("second").usable_tokens == len(made.tokens) + 7
    assert encoder(engine).counts.encoded == 2
    assert_alike(answer(engine, "second"), answer_to(turn))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tokens", [37, 64])
def test_a_hit_inside_a_picture_takes_its_last_rows(tokens: int, kept: bool, cut_at: Cut) -> None:
    made, expected = MADE["several"](), alone("several")
    cut_at(tokens)
    engine = seeing_engine()
    post(engine, made, "first")
    computed, (picture, *_) = 0, made.pictures
    while computed <= picture.start:
        engine.step()
        for request in engine.engine._scheduler.running.prompts:
            computed = request.state.progress.num_computed  # type: ignore[attr-defined]
    assert computed < picture.run.end
    engine.post(m.Abort(m.RequestId("first")))
    engine.run()
    assert_idle(engine)
    if not kept:
        encoder(engine).store.clear()
    before = encoder(engine).counts.encoded
    ask(engine, made, "second")
    assert_alike(answer(engine, "second"), expected)
    assert engine.hit("second").usable_tokens == computed
    # Pictures a and b were encoded ahead of their chunks; a stands in the prompt twice.
    assert before == 2 and encoder(engine).counts.encoded - before == (0 if kept else 2)


def test_rows_are_found_under_their_salt_only() -> None:
    engine = seeing_engine()
    made = MADE["short"]()
    for name, salt in (("r", b"1"), ("s", b"2")):
        ask(engine, made, name, salt=salt)
        assert_alike(answer(engine, name), alone("short"))
    assert encoder(engine).counts.encoded == 2 and encoder(engine).counts.kept == 0
    assert engine.hit("s").kv_tokens == 0
    other = Prompt().text(text(33, 4)).picture("a", 2, 3)
    ask(engine, other, "t", salt=b"1")
    assert encoder(engine).counts.encoded == 2 and encoder(engine).counts.kept == 1


def test_text_before_a_picture_is_prefilled_meanwhile() -> None:
    parts = seeing_parts()
    engine = seeing_engine(parts, prefill_chunk_tokens=64)
    slow_clock(engine)
    post(engine, Prompt().text(text(300)).picture("a", 9, 11).text(text(5)))
    engine.step()
    engine.step()
    (request,) = engine.engine._scheduler.running.prompts
    assert encoder(engine).counts.encoded == 0
    assert request.state.progress.num_scheduled == 128  # type: ignore[attr-defined]
    engine.run()
    assert engine.phases("r") == ["Prefilling", "Decoding", "Finished"]


def test_a_short_text_before_a_picture_waits_for_its_rows() -> None:
    """It has no forward of its own: that would read all weights for a few tokens."""
    made = Prompt().text(text(100)).picture("a", 9, 11).text(text(5)).picture("b", 2, 3)
    made.text(text(40))
    engine = seeing_engine(seeing_parts(), prefill_chunk_tokens=512)
    slow_clock(engine)
    post(engine, made)
    scheduled = []
    while not answer(engine):
        engine.step()
        scheduled += [
            request.state.progress.num_scheduled  # type: ignore[attr-defined]
            for request in engine.engine._scheduler.running.prompts
        ]
    engine.run()
    before_b, whole = made.pictures[1].start, len(made.tokens)
    assert scheduled[0] == 0 and {*scheduled} <= {0, before_b, whole}
    assert_alike(answer(engine), answer_to(made))


def slow_clock(engine: Lone) -> None:
    """Make each reading of the encoder's clock an hour later: one block a step."""
    now = iter(range(0, 10**9, 3600))
    encoder(engine)._clock = lambda: float(next(now))


def test_answers_go_on_while_a_picture_is_encoded() -> None:
    engine = seeing_engine()
    slow_clock(engine)
    engine.post(submit("words", text(20), 40))
    engine.steps(2)
    post(engine, Prompt().picture("a", 9, 11).text(text(5)))
    counts = []
    while not engine.tokens("r"):
        engine.step()
        counts.append(len(engine.tokens("words")))
    # Each of the tower's blocks shared a step with one more token of the answer.
    assert len(counts) > TOWER.depth
    assert {after - before for before, after in pairwise(counts)} == {1}
    engine.run()
    assert "Encoding" in engine.phases("r")
    assert engine.tokens("words") == seeing_engine().ask("words", text(20), 40)


def budgeted(tokens: int, slabs: int | None = None, **settings: Any) -> Lone:
    """Return an engine with rows for so many tokens."""
    engine = seeing_engine(slabs=slabs, **settings)
    encoder(engine).store._budget = tokens * ROW_BYTES
    return engine


def test_a_budget_of_one_picture_serves_several_in_one_prompt() -> None:
    engine = budgeted(99)
    for name in ("several", "first"):
        post(engine, MADE[name](), name)
    engine.run()
    for name in ("several", "first"):
        assert_alike(answer(engine, name), alone(name))
    assert_idle(engine)
    assert encoder(engine).store.nbytes <= 99 * ROW_BYTES


def test_retracted_requests_compute_their_pictures_again() -> None:
    engine = seeing_engine(seeing_parts(arena_mib=0.3), prefill_chunk_tokens=64)
    encoder(engine).store._budget = 100 * ROW_BYTES
    made = {
        f"r{seed}": Prompt().text(text(30, seed)).picture(f"p{seed}", 9, 11).text(text(20))
        for seed in range(8)
    }
    for name, each in made.items():
        post(engine, each, name, 200)
    engine.run()
    assert engine.stats().retractions > 0
    for name, each in made.items():
        assert_alike(answer(engine, name), answer_to(each, 200))
    engine.assert_at_rest()
    assert_idle(engine)


@pytest.mark.parametrize("name", ["several", "open"])
def test_forked_answers_share_their_pictures(name: str) -> None:
    """A carrier computes all but the last token, here also one of a picture."""
    engine = seeing_engine()
    made = MADE[name]()
    sampling = SamplingParams(max_new_tokens=8, ignore_eos=True, temperature=1.0, seed=1)
    forks = tuple(m.Fork(m.RequestId(f"f{seed}"), seed) for seed in (2, 3))
    ask(engine, made, sampling=sampling, forks=forks)
    assert encoder(engine).counts.encoded == len({one.digest for one in made.pictures})
    for name, seed in (("r", 1), ("f2", 2), ("f3", 3)):
        own = replace(sampling, seed=seed)
        assert_alike(answer(engine, name), answer_to(made, sampling=own))
    assert_idle(engine)


def test_an_abort_drops_encodes_and_pins() -> None:
    engine = seeing_engine()
    slow_clock(engine)
    for name in ("waits", "shares"):
        post(engine, Prompt().picture("a", 9, 11).text(text(5)), name)
    engine.steps(2)
    assert encoder(engine).store.reservations == 1
    engine.post(m.Abort(m.RequestId("waits")))
    engine.step()
    assert encoder(engine).store.reservations == 1
    engine.post(m.Abort(m.RequestId("shares")))
    assert_idle(engine)
    assert encoder(engine).counts.dropped == 1 and encoder(engine).store.nbytes == 0
    engine.run()
    engine.assert_at_rest()


@pytest.mark.parametrize("aborted", [False, True])
def test_a_defect_as_pictures_are_released_keeps_no_request(
    aborted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = seeing_engine()
    break_release(engine, monkeypatch)
    made = Prompt().picture("a", 2, 3).text(text(5)).picture("b", 2, 3).text(text(5))
    for name in ("one", "other"):
        post(engine, made, name)
    engine.steps(2)
    if aborted:
        engine.post(m.Abort(m.RequestId("one")))
    engine.run()
    reason = m.FinishReason.ABORT if aborted else m.FinishReason.LENGTH
    assert engine.finished("one").reason is reason
    assert len(answer(engine, "other")) == 8
    assert "the pictures of request one are not released" in caplog.text
    engine.assert_at_rest()
    assert_idle(engine)


def test_two_requests_for_one_picture_encode_it_once() -> None:
    engine = seeing_engine()
    for seed in range(3):
        post(engine, Prompt().text(text(9, seed)).picture("a", 9, 11), f"r{seed}")
    engine.run()
    assert encoder(engine).counts.encoded == 1
    assert_idle(engine)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_after_random_lives_nothing_is_held(count: int) -> None:
    random = np.random.default_rng(7)
    # All wait at once: the last of a thousand longer than a minute.
    engine = budgeted(120, slabs=12, max_batch=6, prefill_chunk_tokens=64, queue_timeout=600.0)
    names = [f"r{number}" for number in range(count)]
    for name in names:
        made = Prompt().text(text(int(random.integers(1, 90)), int(random.integers(4))))
        for _ in range(int(random.integers(0, 4))):
            made.picture(f"p{random.integers(5)}", int(random.integers(1, 9)), 11)
            made.text(text(int(random.integers(0, 30))))
        post(engine, made, name, int(random.integers(1, 30)), salt=bytes([random.integers(2)]))
        engine.steps(int(random.integers(0, 5)))
        if random.random() < 0.4:
            engine.post(m.Abort(m.RequestId(names[int(random.integers(len(names)))])))
    engine.run()
    ended = engine.all_said(m.Finished)
    assert len(ended) == count and not engine.all_said(m.Rejected)
    engine.assert_at_rest()
    assert_idle(engine)
    store = encoder(engine).store
    assert store.nbytes <= 120 * ROW_BYTES
    store.clear()
    assert store.nbytes == 0 and len(store) == 0


@pytest.mark.parametrize("fault", ["raises", "raises at once", "infinite"])
def test_a_failed_encode_ends_its_requests_alone(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = seeing_engine()

    def rows(self: Encode) -> torch.Tensor:
        if fault == "raises":
            raise MemoryError("no memory is left")
        return torch.full((self.grid.tokens, TOWER.out_hidden), float("inf"))

    def begin(self: VisionTower, patches: object) -> Encode:
        raise MemoryError("no memory is left")

    with monkeypatch.context() as broken:
        broken.setattr(Encode, "rows", rows)
        if fault == "raises at once":
            broken.setattr(VisionTower, "begin", begin)
        post(engine, MADE["short"](), "seeing")
        engine.post(submit("words", text(20), 8))
        engine.run()
    error = engine.rejected("seeing")
    assert error.kind is m.ErrorKind.INTERNAL
    assert ("NaN or infinite" if fault == "infinite" else "no memory is left") in error.message
    assert len(engine.tokens("words")) == 8
    assert_idle(engine)
    assert encoder(engine).store.nbytes == 0
    ask(engine, MADE["short"](), "again")
    assert_alike(answer(engine, "again"), alone("short"))


def changed(**fields: object) -> Prompt:
    made = MADE["short"]()
    made.pictures[0] = replace(made.pictures[0], **fields)  # type: ignore[arg-type]
    return made


def reworded(place: int, token: int) -> Prompt:
    made = MADE["short"]()
    made.tokens[place] = token
    return made


LEVELS = MADE["short"]().pictures[0].levels
REFUSED: dict[str, tuple[Prompt, str]] = {
    "run too short": (reworded(26, 1), "token 21: no 6 equal placeholders"),
    "mixed run": (reworded(26, VIDEO), "token 21: no 6 equal placeholders"),
    "unopened": (reworded(20, 1), f"token 21: no token {START} opens the picture"),
    "no place": (changed(start=99), "token 99: no picture can stand here"),
    "at the start": (changed(start=0), "token 0: no picture can stand here"),
    "negative": (changed(start=-3), "token -3: no picture can stand here"),
    "without rows": (changed(rows=0), "token 21: no picture can stand here"),
    "too large": (changed(rows=10**7), "token 21: a picture of 30000000 tokens is larger"),
    "another size": (changed(rows=3, columns=2, levels=LEVELS[:-1]), "token 21: patches of shape"),
    "another dtype": (changed(levels=LEVELS.astype(np.int16)), "token 21: patches of shape"),
    "beyond the end": (changed(columns=13), "token 21: no 26 equal placeholders"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pictures_that_do_not_fit_are_refused_by_their_place(name: str) -> None:
    made, message = REFUSED[name]
    engine = seeing_engine()
    post(engine, made)
    error = engine.rejected("r")
    assert error.kind is m.ErrorKind.INVALID and f"prompt: {message}" in error.message
    assert not engine.step()


class FailedForward:
    """A forward that failed on the device."""

    busy_seconds = idle_seconds = 0.0
    guesses = None

    def ready(self) -> bool:
        return True

    def result(self) -> None:
        raise RuntimeError("boom")


def test_a_request_of_a_failed_forward_without_rows_holds_up_no_other(
    cut_at: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows find no memory beside the pins of another one, so that one goes on meanwhile."""
    cut_at(16)
    engine = seeing_engine()
    encoder(engine).store._budget = 100 * ROW_BYTES
    ask(engine, Prompt().text(text(4)).picture("c", 9, 11).text(text(9, 3)), "before")
    post(engine, Prompt().text(text(4)).picture("c", 9, 11).text(text(9, 1)), "hit")
    post(engine, Prompt().text(text(6, 5)).picture("a", 9, 11).text(text(40, 7)), "other")
    post(engine, Prompt().text(text(300, 9)), "words")
    launch, compute = CpuRunner.launch, CpuRunner._compute
    failed: list[int] = []

    def computed(self: CpuRunner, plan: ForwardPlan, rows: Any) -> Any:
        if not failed and len(rows) > 1 and plan.pictures:
            failed.append(plan.number)
            raise RuntimeError("boom")
        return compute(self, plan, rows)

    def launched(self: CpuRunner, plan: ForwardPlan) -> object:
        try:
            return launch(self, plan)
        except RuntimeError:
            return FailedForward()

    monkeypatch.setattr(CpuRunner, "_compute", computed)
    monkeypatch.setattr(CpuRunner, "launch", launched)
    for _ in range(2000):
        if not engine.step():
            break
    assert failed
    assert [len(answer(engine, name)) for name in ("hit", "other", "words")] == [8, 8, 8]


def test_a_followed_prompt_keeps_no_state_inside_its_picture() -> None:
    engine = seeing_engine()
    prompts = [Prompt().text(text(4)).picture("a", 15, 15).text(text(80, seed)) for seed in (3, 8)]
    for name, made in zip("ab", prompts, strict=True):
        post(engine, made, name)
    (picture,) = prompts[0].pictures
    kept: set[int] = set()
    while engine.step():
        for request in engine.engine._scheduler.running.prompts:
            kept |= {each.position for each in request.state.checkpoints}  # type: ignore[attr-defined]
    assert kept and not [each for each in kept if picture.start <= each < picture.run.end]


@pytest.mark.parametrize("token", [IMAGE, VIDEO])
def test_a_placeholder_outside_all_pictures_is_text(token: int) -> None:
    """The model may have sampled it in an earlier turn."""
    engine = seeing_engine()
    for request, made in (("text", Prompt().text([1, token, 2])), ("both", reworded(28, token))):
        post(engine, made, request)
        engine.run()
        assert len(answer(engine, request)) == 8


def test_pictures_out_of_order_are_refused() -> None:
    made = MADE["several"]()
    made.pictures.reverse()
    engine = seeing_engine()
    post(engine, made, forks=(m.Fork(m.RequestId("f"), 3),))
    for name in ("r", "f"):
        assert "a picture begins inside the one before" in engine.rejected(name).message


def test_a_blind_node_refuses_pictures_and_answers_text() -> None:
    engine = seeing_engine(replace(seeing_parts(), tower=None, sight=None))
    post(engine, MADE["short"]())
    error = engine.rejected("r")
    assert error.kind is m.ErrorKind.INVALID and "this node sees none" in error.message
    assert len(engine.ask("words", [1, IMAGE, 2], 4)) == 4


def test_a_drawn_placeholder_is_text() -> None:
    engine = seeing_engine()
    made = MADE["short"]()
    forced = SamplingParams(max_new_tokens=3, ignore_eos=True, allowed_token_ids=(IMAGE,))
    assert ask(engine, made, sampling=forced) == [IMAGE] * 3
    assert_idle(engine)


def test_penalties_and_scores_read_tokens() -> None:
    made = MADE["short"]()
    penal = SamplingParams(max_new_tokens=8, ignore_eos=True, repetition_penalty=1.5)
    assert len(ask(seeing_engine(), made, sampling=penal)) == 8
    engine = seeing_engine()
    ask(engine, made, prompt_logprobs=2)
    scored = engine.all_said(m.PromptScored)
    assert sum(len(part) for part in scored) == len(made.tokens) - 1
    assert all((part.top_tokens >= 0).all() for part in scored)


def test_a_message_with_pictures_travels_to_another_process() -> None:
    made = MADE["short"]()
    message = submit("r", made.tokens, 8, pictures=tuple(made.pictures))
    read: m.Submit = reader_of(m.Submit)(packer().encode(message))
    (picture,) = read.pictures
    assert np.array_equal(picture.levels, made.pictures[0].levels)
    assert picture.digest == made.pictures[0].digest and np.array_equal(read.keys, message.keys)
    assert submit("r", [1, 2], 1).keys is not None


def test_the_row_budget_must_hold_the_largest_picture() -> None:
    parts = seeing_parts()
    assert parts.tower is not None
    parts.tower.rules = replace(parts.tower.rules, most=2**30)
    with pytest.raises(EngineConfigError, match=r"the largest picture of 67108864 tokens takes"):
        build_pictures(EngineConfig(model="tiny"), parts)


def named(number: int) -> tuple[bytes, PictureDigest]:
    return b"", PictureDigest(bytes([number]) * 32)


def test_the_store_evicts_the_least_recently_used_unpinned_rows() -> None:
    store = RowStore(10 * 4, 4)
    numbers = []
    for number in range(3):
        assert store.reserve(named(number), 3)
        store.put(named(number), torch.zeros(3, 1))
        pinned = store.pin(named(number))
        assert pinned is not None
        numbers.append(pinned)
    assert not store.reserve(named(9), 2) and store.nbytes == 36
    store.unpin(numbers[1])
    store.unpin(numbers[0])
    assert store.reserve(named(9), 4)
    # Picture 0 was used before picture 1.
    assert store.pin(named(0)) is None and store.pin(named(1)) is not None
    with pytest.raises(RowsGone):
        store.rows(numbers[0])
    store.cancel(named(9))
    assert store.nbytes == 24 and store.reservations == 0


def test_marks_inside_a_picture_resume_before_it() -> None:
    """The prompt's end lies in the picture too, so its state stays and one before is kept."""
    engine = seeing_engine()
    made = Prompt().text(text(100)).picture("a", 9, 11).text(text(3))
    ask(engine, made, "first", marks=(150,))
    other = Prompt().text(text(100)).picture("b", 9, 11).text(text(3))
    ask(engine, other, "second")
    assert engine.hit("second").usable_tokens == PAGE_TOKENS
    assert engine.hit("second").checkpoint_source in ("mark", "prompt_end")
    assert END in made.tokens
