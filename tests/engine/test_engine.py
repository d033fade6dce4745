"""The engine loop on a tiny random model: equal tokens for every cut of the work, and nothing left
behind."""

from dataclasses import replace

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.request import Decoding, Finished, IllegalMove, Request, Waiting
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_cuts import EngineCuts
from tests.harness.engines import (
    TINY,
    Lone,
    alone,
    assert_answered_as_alone,
    prompt,
    submit,
    tiny_engine,
)


class CpuEngines:
    vocabulary = TINY["vocab_size"]

    def cold(self, chunk: int = 512, max_batch: int = 64) -> Lone:
        return tiny_engine(arena_mib=24, prefill_chunk_tokens=chunk, max_batch=max_batch)

    def oracle(self) -> Lone:
        return tiny_engine(arena_mib=24, prefill_chunk_tokens=4096)


@pytest.fixture
def engines() -> CpuEngines:
    return CpuEngines()


class TestCutsOnTheCpu(EngineCuts):
    pass


def test_a_prompt_is_admitted_with_the_slots_that_it_works_in_and_no_other() -> None:
    engine = tiny_engine()
    engine.post(submit("a", prompt(30), max_new_tokens=4))
    engine.step()
    assert engine.engine._cache.stats().slots.working == 2
    engine.run()


def test_salts_share_nothing() -> None:
    engine = tiny_engine()
    for name, salt in (("a", b"x"), ("b", b"y")):
        engine.ask(name, prompt(200), 2, salt=salt)
    hit = engine.hit("b")
    assert hit.kv_tokens == 0 and hit.causes["new"] == 200


def test_more_requests_than_the_arena_holds_all_finish_with_the_right_tokens() -> None:
    """Each retracted request is counted once."""
    engine = tiny_engine(arena_mib=0.3, prefill_chunk_tokens=64)
    prompts = {f"r{i}": prompt(150, seed=i) for i in range(8)}
    engine.ask_all(prompts, 200)
    assert_answered_as_alone(engine, prompts, 200)
    stats = engine.stats()
    assert stats.retractions > 0, "no request was retracted: the arena is too large for this test"
    assert stats.tree["leased_requests"] > len(prompts) and stats.tree["usable_tokens"] > 0
    assert (stats.looked_up_tokens, stats.usable_tokens) == (8 * 150, 0)
    engine.ask("again", prompts["r7"], 2)
    again = engine.stats()
    assert again.looked_up_tokens - stats.looked_up_tokens == 150
    assert again.usable_tokens == engine.hit("again").usable_tokens
    assert again.retractions == stats.retractions
    engine.assert_at_rest()


def test_what_was_computed_of_an_aborted_request_is_found_again() -> None:
    """It has all of a prompt but the chunks in flight, and all of an answer but the tokens in
    flight."""
    engine = tiny_engine(arena_mib=16, prefill_chunk_tokens=512)
    long = prompt(3000)
    engine.post(submit("prompt", long, 4))
    engine.steps(5)
    engine.post(m.Abort(m.RequestId("prompt")))
    engine.run()
    assert engine.finished("prompt").reason is m.FinishReason.ABORT and not engine.tokens("prompt")
    engine.ask("again", long, 4)
    assert engine.hit("again").usable_tokens >= 3 * 512

    engine.post(submit("answer", prompt(400, seed=1), 200))
    while len(engine.tokens("answer")) < 50:
        engine.step()
    engine.post(m.Abort(m.RequestId("answer")))
    engine.run()
    answered = engine.tokens("answer")
    engine.ask("next", prompt(400, seed=1) + answered + prompt(30, seed=2), 2)
    assert engine.hit("next").usable_tokens >= 400 + len(answered) - 2
    engine.assert_at_rest()


def test_an_abort_in_any_step_frees_everything_and_spares_the_others() -> None:
    expected = alone(prompt(150, seed=1), 12)
    for steps in range(0, 18, 2):
        engine = tiny_engine(prefill_chunk_tokens=64)
        engine.post(submit("gone", prompt(200), 30))
        engine.post(submit("stays", prompt(150, seed=1), 12))
        engine.steps(steps)
        engine.post(m.Abort(m.RequestId("gone")))
        engine.post(m.Abort(m.RequestId("gone")))
        engine.run()
        assert engine.finished("gone").reason is m.FinishReason.ABORT
        assert engine.tokens("stays") == expected
        engine.assert_at_rest()


def test_what_can_never_be_served_is_refused_at_submit_with_the_number_that_fits() -> None:
    engine = tiny_engine(arena_mib=0.6)
    engine.post(submit("long", prompt(4000), 8))
    error = engine.rejected("long")
    assert error.kind is m.ErrorKind.TOO_LONG
    limit = int(error.message.split("at most ")[1].split()[0])
    assert len(engine.ask("fits", prompt(limit - 3), 4)) == 4
    for name, tokens in (("empty", []), ("vocab", [128]), ("negative", [-1])):
        engine.post(submit(name, tokens, 1))
        assert engine.rejected(name).kind is m.ErrorKind.INVALID
    # Drafts go through the model as a prompt does.
    for name, token in (("beyond", 128), ("below", -1)):
        prediction = np.array([5, token], dtype=np.int32)
        engine.post(replace(submit(name, prompt(10), 4), prediction=prediction))
        error = engine.rejected(name)
        assert error.kind is m.ErrorKind.INVALID and "prediction holds a token" in error.message
    for named in (
        {"allowed_token_ids": (5, 128)},
        {"bad_words": ((5, 128),)},
        {"logit_bias": ((5, 1.0), (128, 1.0))},
    ):
        (field,) = named
        sampling = SamplingParams(max_new_tokens=4, **named)  # type: ignore[arg-type]
        engine.post(submit(field, prompt(10), 4, sampling=sampling))
        error = engine.rejected(field)
        assert error.kind is m.ErrorKind.INVALID and f"{field} names token 128" in error.message
    engine.post(submit("twice", prompt(10), 4))
    engine.post(submit("twice", prompt(10), 4))
    assert "in use" in engine.rejected("twice").message
    engine.run()
    engine.assert_at_rest()


def test_a_mark_where_a_chunk_ends_is_kept() -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    log = prompt(300)
    engine.ask("first", log, 1, marks=(128,))
    engine.ask("fork", log[:140] + prompt(60, seed=9), 1)
    assert engine.hit("fork").usable_tokens == 128


def test_draining_refuses_the_new_and_answers_when_the_old_are_done() -> None:
    engine = tiny_engine()
    engine.post(submit("old", prompt(100), 5))
    engine.step()
    engine.post(m.Drain(7))
    engine.post(submit("new", prompt(10), 1))
    assert engine.rejected("new").kind is m.ErrorKind.DRAINING
    assert m.Drained(7) not in engine.said
    engine.run()
    engine.step()
    engine.step()
    assert engine.all_said(m.Drained) == [m.Drained(7)], "told once"
    assert engine.finished("old").reason is m.FinishReason.LENGTH


def test_an_undrained_node_takes_requests_again() -> None:
    engine = tiny_engine()
    engine.post(m.Undrain())
    assert not engine.said, "nothing was drained"
    engine.post(submit("old", prompt(100), 5))
    engine.step()
    engine.post(m.Drain(7))
    engine.post(m.Undrain())
    assert engine.all_said(m.Drained) == [m.Drained(7, at_rest=False)]
    engine.ask("new", prompt(10), 1)
    assert engine.finished("new").reason is m.FinishReason.LENGTH
    engine.post(m.Drain(8))
    engine.step()
    assert m.Drained(8) in engine.said


def test_a_forward_that_raises_fails_its_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    engine.post(submit("bad", prompt(70), 4))
    with monkeypatch.context() as broken:
        broken.setattr(engine.parts.model, "forward", None)
        engine.step()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert engine.ask("good", prompt(70), 4) == alone(prompt(70), 4)
    engine.assert_at_rest()


def test_an_illegal_move_names_both_states() -> None:
    request = Request(m.RequestId("r"), np.zeros(3, dtype=np.int32), SamplingParams())
    with pytest.raises(IllegalMove, match="Waiting -> Decoding"):
        request.move(Decoding.__new__(Decoding))
    request.move(Finished())
    with pytest.raises(IllegalMove, match="Finished -> Waiting"):
        request.move(Waiting())
