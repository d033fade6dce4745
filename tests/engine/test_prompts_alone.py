"""Requests without sampled tokens. Their prompts are computed and cached, nothing more."""

import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, alone, prompt, submit, tiny_engine, tiny_parts

NOTHING = SamplingParams(max_new_tokens=0)


def computed(engine: Lone, name: str) -> m.Finished:
    """Assert that a request ended without a sampled token, and return its end."""
    ended = engine.finished(name)
    assert ended.reason is m.FinishReason.LENGTH and ended.usage.completion_tokens == 0
    assert engine.tokens(name) == []
    return ended


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("chunk", [64, 512])
def test_a_prompt_alone_is_computed_and_kept_to_its_end(length: int, chunk: int) -> None:
    engine = tiny_engine(prefill_chunk_tokens=chunk)
    tokens = prompt(length)
    engine.post(submit("r", tokens, 0, sampling=NOTHING))
    engine.run()
    computed(engine, "r")
    more = tokens + prompt(20, seed=1)
    assert engine.ask("next", more, 8) == alone(more, 8)
    assert engine.hit("next").usable_tokens == length
    engine.assert_at_rest()


def test_prompts_alone_beside_answers_change_none_of_them() -> None:
    engine = tiny_engine(arena_mib=0.5, prefill_chunk_tokens=64)
    prompts = {f"r{place}": prompt(120, seed=place) for place in range(4)}
    for name, tokens in prompts.items():
        engine.post(submit(name, tokens, 30))
        engine.post(submit(f"{name} alone", tokens[::-1], 0, sampling=NOTHING))
    engine.run()
    for name, tokens in prompts.items():
        assert engine.tokens(name) == alone(tokens, 30)
        computed(engine, f"{name} alone")
    engine.assert_at_rest()


def test_an_abort_on_the_way_leaves_nothing() -> None:
    for steps in range(6):
        engine = tiny_engine(prefill_chunk_tokens=64)
        engine.post(submit("r", prompt(200), 0, sampling=NOTHING))
        for _ in range(steps):
            engine.step()
        engine.post(m.Abort(m.RequestId("r")))
        engine.run()
        assert len(engine.all_said(m.Finished)) == 1
        engine.assert_at_rest()


def test_a_decode_node_hands_no_prompt_over_that_has_no_answer() -> None:
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        pair.decode.post(submit("r", prompt(200), 0, sampling=NOTHING))
        pair.decode.run()
        computed(pair.decode, "r")
        assert not pair.decode.all_said(m.HandoverWanted)
        pair.decode.assert_at_rest()
