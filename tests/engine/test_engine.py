"""The engine loop on a tiny random model: equal tokens however the work is cut, and nothing left
behind."""

import numpy as np
import pytest
import torch
from tasuki.engine import messages as m
from tasuki.engine.build import build_parts
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.request import Decoding, Finished, IllegalMove, Request, Waiting
from tasuki.model.ops.sampling.params import SamplingParams

from tests.harness.engines import Lone, submit, tiny_parts


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 128, length).tolist()


def lone(arena_mib: float = 8.0, **changes: object) -> Lone:
    config = EngineConfig(model="tiny", dtype="float32", **changes)  # type: ignore[arg-type]
    return Lone(config, parts=tiny_parts(arena_mib))


def alone(tokens: list[int], max_new_tokens: int) -> list[int]:
    """The oracle: the request by itself in a fresh engine, whole prompt in one chunk."""
    engine = lone(prefill_chunk_tokens=4096)
    engine.post(submit("r", tokens, max_new_tokens))
    engine.run()
    return engine.tokens("r")


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 200])
def test_prompts_of_every_length_finish_and_leave_nothing(length: int) -> None:
    engine = lone(prefill_chunk_tokens=64)
    engine.post(submit("r", prompt(length), 8))
    engine.run()
    assert engine.tokens("r") == alone(prompt(length), 8)
    done = engine.finished("r")
    assert done.reason is m.FinishReason.LENGTH
    assert done.usage.completion_tokens == 8
    assert done.usage.hit is not None
    assert done.usage.hit.usable_tokens + sum(done.usage.hit.causes.values()) == length
    engine.assert_at_rest()


def test_a_batch_answers_as_each_request_alone() -> None:
    engine = lone(prefill_chunk_tokens=128)
    prompts = {f"r{i}": prompt(20 + 37 * i, seed=i) for i in range(8)}
    for name, tokens in prompts.items():
        engine.post(submit(name, tokens, 6))
    engine.run()
    for name, tokens in prompts.items():
        assert engine.tokens(name) == alone(tokens, 6), name
    engine.assert_at_rest()


def test_the_next_turn_resumes_at_the_exact_end_of_the_last() -> None:
    engine = lone()
    first = prompt(100)
    engine.post(submit("t1", first, 10))
    engine.run()
    second = first + engine.tokens("t1") + prompt(30, seed=3)
    engine.post(submit("t2", second, 10))
    engine.run()
    hit = engine.finished("t2").usage.hit
    assert hit is not None
    # The last sampled token was never forwarded: the state stands one before it.
    assert hit.usable_tokens == 109
    assert hit.checkpoint_source == "turn_end"
    assert engine.tokens("t2") == alone(second, 10)
    engine.assert_at_rest()


def test_an_identical_prompt_hits_the_last_page_boundary() -> None:
    engine = lone()
    for name in ("a", "b"):
        engine.post(submit(name, prompt(200), 4))
        engine.run()
    hit = engine.finished("b").usage.hit
    assert hit is not None and hit.usable_tokens == 192
    assert engine.tokens("a") == engine.tokens("b")


def test_a_prompt_is_admitted_with_the_slots_that_it_works_in_and_no_other() -> None:
    engine = lone()
    engine.post(submit("a", prompt(30), max_new_tokens=4))
    engine.step()
    assert engine.engine._cache.stats().slots.working == 2
    engine.run()


def test_a_branch_gets_a_checkpoint_where_the_second_request_left_the_first() -> None:
    engine = lone()
    shared = prompt(128, seed=9)
    for i in range(3):
        engine.post(submit(f"r{i}", shared + prompt(80, seed=20 + i), 2))
        engine.run()
    hits = [engine.finished(f"r{i}").usage.hit for i in range(3)]
    assert [hit.usable_tokens for hit in hits if hit is not None] == [0, 0, 128]
    assert hits[1] is not None and hits[1].causes["never_checkpointed"] == 128
    assert hits[2] is not None and hits[2].checkpoint_source == "branch"


def test_a_mark_serves_the_second_sharer() -> None:
    engine = lone()
    shared = prompt(128, seed=9)
    for i in range(2):
        engine.post(submit(f"r{i}", shared + prompt(80, seed=20 + i), 2, marks=(128,)))
        engine.run()
    hit = engine.finished("r1").usage.hit
    assert hit is not None and (hit.usable_tokens, hit.checkpoint_source) == (128, "mark")


def test_salts_share_nothing() -> None:
    engine = lone()
    for name, salt in (("a", b"x"), ("b", b"y")):
        engine.post(submit(name, prompt(200), 2, salt=salt))
        engine.run()
    hit = engine.finished("b").usage.hit
    assert hit is not None and hit.kv_tokens == 0 and hit.causes["new"] == 200


def test_more_requests_than_the_arena_holds_all_finish_with_the_right_tokens() -> None:
    engine = lone(arena_mib=0.3, prefill_chunk_tokens=64)
    prompts = {f"r{i}": prompt(150, seed=i) for i in range(8)}
    for name, tokens in prompts.items():
        engine.post(submit(name, tokens, 200))
    engine.run()
    for name, tokens in prompts.items():
        assert engine.tokens(name) == alone(tokens, 200), name
    allocations = engine.stats().tree["leased_requests"]
    assert allocations > len(prompts), (
        "no request was retracted: the arena is too large for this test"
    )
    engine.assert_at_rest()


def test_an_abort_in_any_step_frees_everything_and_spares_the_others() -> None:
    expected = alone(prompt(150, seed=1), 12)
    for steps in range(0, 18, 2):
        engine = lone(prefill_chunk_tokens=64)
        engine.post(submit("gone", prompt(200), 30))
        engine.post(submit("stays", prompt(150, seed=1), 12))
        for _ in range(steps):
            engine.step()
        engine.post(m.Abort(m.RequestId("gone")))
        engine.post(m.Abort(m.RequestId("gone")))
        engine.run()
        assert engine.finished("gone").reason is m.FinishReason.ABORT
        assert engine.tokens("stays") == expected
        engine.assert_at_rest()


def test_stop_tokens_end_an_answer_and_eos_is_ignored_on_request() -> None:
    answer = alone(prompt(50), 8)
    engine = lone()
    sampling = SamplingParams(max_new_tokens=8, stop_token_ids=(answer[3],))
    engine.post(submit("r", prompt(50), 8, sampling=sampling))
    engine.run()
    assert engine.finished("r").reason is m.FinishReason.STOP
    assert engine.tokens("r") == answer[: answer.index(answer[3]) + 1]


def test_what_can_never_be_served_is_refused_at_submit_with_the_number_that_fits() -> None:
    engine = lone(arena_mib=0.6)
    engine.post(submit("long", prompt(4000), 8))
    error = engine.rejected("long")
    assert error.kind is m.ErrorKind.TOO_LONG
    limit = int(error.message.split("at most ")[1].split()[0])
    engine.post(submit("fits", prompt(limit - 3), 4))
    engine.run()
    assert engine.finished("fits").usage.completion_tokens == 4
    for name, tokens in (("empty", []), ("vocab", [128]), ("negative", [-1])):
        engine.post(submit(name, tokens, 1))
        assert engine.rejected(name).kind is m.ErrorKind.INVALID
    engine.post(submit("twice", prompt(10), 4))
    engine.post(submit("twice", prompt(10), 4))
    assert "in use" in engine.rejected("twice").message
    engine.run()
    engine.assert_at_rest()


def test_draining_refuses_the_new_and_answers_when_the_old_are_done() -> None:
    engine = lone()
    engine.post(submit("old", prompt(100), 5))
    engine.step()
    engine.post(m.Drain(7))
    engine.post(submit("new", prompt(10), 1))
    assert engine.rejected("new").kind is m.ErrorKind.DRAINING
    assert m.Drained(7) not in engine.said
    engine.run()
    engine.step()
    assert m.Drained(7) in engine.said
    assert engine.finished("old").reason is m.FinishReason.LENGTH


def test_an_undrained_node_takes_requests_again() -> None:
    engine = lone()
    engine.post(m.Undrain())
    assert not engine.said, "nothing was drained"
    engine.post(submit("old", prompt(100), 5))
    engine.step()
    engine.post(m.Drain(7))
    engine.post(m.Undrain())
    assert [said for said in engine.said if isinstance(said, m.Drained)] == [
        m.Drained(7, at_rest=False)
    ]
    engine.post(submit("new", prompt(10), 1))
    engine.run()
    assert engine.finished("new").reason is m.FinishReason.LENGTH
    engine.post(m.Drain(8))
    engine.step()
    assert m.Drained(8) in engine.said


def test_a_forward_that_raises_fails_its_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = lone()
    engine.post(submit("bad", prompt(70), 4))
    with monkeypatch.context() as broken:
        broken.setattr(engine.parts.model, "forward", None)
        engine.step()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    engine.post(submit("good", prompt(70), 4))
    engine.run()
    assert engine.tokens("good") == alone(prompt(70), 4)
    engine.assert_at_rest()


def test_an_illegal_move_names_both_states() -> None:
    request = Request(m.RequestId("r"), np.zeros(3, dtype=np.int32), SamplingParams())
    with pytest.raises(IllegalMove, match="Waiting -> Decoding"):
        request.move(Decoding.__new__(Decoding))
    request.move(Finished())
    with pytest.raises(IllegalMove, match="Finished -> Waiting"):
        request.move(Waiting())


def test_settings_that_cannot_work_are_named() -> None:
    with pytest.raises(EngineConfigError, match="prefill_chunk_tokens"):
        EngineConfig(prefill_chunk_tokens=100)
    with pytest.raises(EngineConfigError, match="arena_mib"):
        EngineConfig(arena_mib=0)
    with pytest.raises(EngineConfigError, match="device must be cpu, cuda or cuda:N, not 'tpu'"):
        EngineConfig(device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(EngineConfigError, match="PyTorch sees no GPU here"):
        build_parts(EngineConfig(model="nowhere", device="cuda"))
