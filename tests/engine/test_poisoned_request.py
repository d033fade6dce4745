"""A request that breaks the forward breaks its own alone, whoever shares its batch; a first token
that is none never reaches the model."""

from collections.abc import Callable
from queue import SimpleQueue

import pytest
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.forward_plan import PlanGap
from tasuki.engine.role import Role
from tasuki.engine.thread import EngineThread
from tasuki.model.batch import Batch

from tests.engine.test_engine import alone, lone, prompt
from tests.harness.engines import Lone, submit, tiny_parts

POISON = 127
PROMPTS = {f"good-{n}": [t % POISON for t in prompt(40 + 37 * n, n)] for n in range(3)}


def break_where(engine: Lone, broken: Callable[[Batch], bool]) -> Callable[[], int]:
    """From now on forwards of such batches raise, half-way: the cache may be half written. Returns
    how many have."""
    forward, raised = engine.parts.model.forward, []

    def breaking(batch: Batch, *rest: object) -> object:
        logits = forward(batch, *rest)
        if broken(batch):
            raised.append(batch)
            raise RuntimeError("poisoned")
        return logits

    engine.parts.model.forward = breaking  # type: ignore[method-assign]
    return lambda: len(raised)


def has_poison(batch: Batch) -> bool:
    return POISON in batch.token_ids


def is_long(batch: Batch) -> bool:
    """Where the poisoned one, the longest, has answered a few tokens."""
    return bool((batch.positions > 305).any())


@pytest.mark.parametrize(("where", "its_tokens"), [(has_poison, 0), (is_long, 7)])
def test_a_poisoned_request_fails_alone(where: Callable[[Batch], bool], its_tokens: int) -> None:
    engine = lone(prefill_chunk_tokens=256)
    raised = break_where(engine, where)
    bad = [t % POISON for t in prompt(300, 9)]
    if where is has_poison:
        bad[150] = POISON
    names = [*PROMPTS]
    engine.post(submit(names[0], PROMPTS[names[0]], 30))
    engine.post(submit("bad", bad, 30))
    for name in names[1:]:
        engine.post(submit(name, PROMPTS[name], 30))
    engine.run()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert len(engine.tokens("bad")) == its_tokens
    for name in names:
        assert engine.tokens(name) == alone(PROMPTS[name], 30), name
        assert engine.finished(name)
    # Once among others, at most once more for each time it joined them again, and once alone.
    assert 2 <= raised() <= 4
    engine.assert_at_rest()


def test_a_lone_request_is_not_tried_twice() -> None:
    engine = lone()
    raised = break_where(engine, has_poison)
    engine.post(submit("bad", [POISON] * 10, 4))
    engine.run()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert raised() == 1
    engine.assert_at_rest()


def test_a_fault_that_passes_costs_time_only() -> None:
    engine = lone(prefill_chunk_tokens=256)
    fails = [True]
    break_where(engine, lambda batch: len(batch.context_lens) > 1 and bool(fails) and fails.pop())
    for name, tokens in PROMPTS.items():
        engine.post(submit(name, tokens, 12))
    engine.run()
    assert not fails
    for name, tokens in PROMPTS.items():
        assert engine.tokens(name) == alone(tokens, 12)
    engine.assert_at_rest()


def test_a_plan_that_the_runner_refuses_ends_the_loop_and_no_single_request() -> None:
    engine = lone()
    engine.engine._plans._planner._number += 1
    said: list[m.Outbox] = []
    died: SimpleQueue[str] = SimpleQueue()
    thread = EngineThread(engine.engine, said.extend, died.put)
    thread.start()
    for name, tokens in PROMPTS.items():
        thread.post(submit(name, tokens, 4))
    assert PlanGap.__name__ in died.get(timeout=30)
    thread.stop()
    assert not said


@pytest.mark.parametrize("token", [-1, 128, 2**31 - 1])
def test_a_first_token_that_is_none_is_a_lost_hand_over(token: int) -> None:
    config = EngineConfig(model="tiny", dtype="float32", local_prefill_tokens=0)
    engine = Lone(config, Role.DECODE, tiny_parts())
    engine.post(m.PeersChanged(True))
    engine.post(submit("r", PROMPTS["good-1"], 6))
    engine.run()
    (wanted,) = [item for item in engine.said if isinstance(item, m.HandoverWanted)]
    room = wanted.ticket.room
    engine.post(m.GrantWanted(room))
    engine.run()
    hit = m.HitBreakdown(77, 0, 0, {}, None)
    engine.post(m.RemoteReady(room, token, 0.0, 1.0, hit, "prefill"))
    assert m.HandoverCancelled(room) in engine.said
    engine.post(m.WriterFenced(room))
    engine.run()
    assert engine.tokens("r") == alone(PROMPTS["good-1"], 6)
    assert engine.finished("r").usage.local_fallback
    engine.assert_at_rest()
