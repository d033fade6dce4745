"""With a limit, prompts beside answers get as many tokens as a forward has time for."""

from dataclasses import dataclass
from typing import cast

import pytest

from tasuki.engine.scheduling.scheduled_forward import (
    AnswerRows,
    ScheduledForward,
    ScheduledSequence,
)
from tasuki.engine.scheduling.scheduler import ChunkLimit
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.engines import prompt, submit, tiny_engine

CHUNK = 8192
DECODE_SECONDS = 0.005


@dataclass
class Row:
    start: int
    stop: int
    decodes: bool


def rows(answers: int, prompt_tokens: int) -> ScheduledForward:
    prompts = [Row(0, prompt_tokens, False)] if prompt_tokens else []
    return ScheduledForward(
        cast(AnswerRows, range(answers)), cast(list[ScheduledSequence], prompts)
    )


def settled(limit: ChunkLimit, token_seconds: float, forwards: int = 200) -> list[int]:
    """Return the tokens of each forward, on a device with these costs."""
    sizes = []
    for _ in range(forwards):
        tokens = limit.tokens(beside_answers=True)
        sizes.append(tokens)
        limit.completed(rows(4, tokens), DECODE_SECONDS + tokens * token_seconds)
    return sizes


@pytest.mark.parametrize("token_seconds", [1e-6, 1e-5, 1e-4])
def test_a_forward_with_answers_takes_no_longer_than_the_limit(token_seconds: float) -> None:
    sizes = settled(ChunkLimit(CHUNK, 0.05), token_seconds)
    longest = max(DECODE_SECONDS + size * token_seconds for size in sizes)
    assert longest <= 2 * 0.05, "while it learns"
    fitting = (0.05 - DECODE_SECONDS) / token_seconds
    for size in sizes[-20:]:
        assert DECODE_SECONDS + size * token_seconds <= 0.055 or size == PAGE_TOKENS
        assert size >= min(CHUNK, fitting) / 2 or size == PAGE_TOKENS


def test_costs_that_grow_shrink_chunks_at_once() -> None:
    limit = ChunkLimit(CHUNK, 0.05)
    before = settled(limit, 1e-5)[-1]
    after = settled(limit, 1e-4, 3)[-1]
    assert after * 1e-4 <= 0.05 < before * 1e-4


def test_a_page_is_always_allowed_and_a_chunk_where_nobody_waits() -> None:
    limit = ChunkLimit(CHUNK, 1e-9)
    assert set(settled(limit, 1.0, 20)) == {PAGE_TOKENS}
    assert limit.tokens(beside_answers=False) == CHUNK
    for work in (rows(0, 4096), rows(4, 0)):
        limit.completed(work, 1e-12)
    assert limit.tokens(beside_answers=True) == PAGE_TOKENS


def test_without_a_limit_every_chunk_is_whole() -> None:
    assert set(settled(ChunkLimit(CHUNK, None), 1.0, 20)) == {CHUNK}


def test_an_engine_cuts_prompts_beside_answers_and_no_others() -> None:
    """No forward can meet the limit, so prompts beside an answer get one page at a time."""
    engine = tiny_engine(max_itl_ms=1e-6, prefill_chunk_tokens=512)
    engine.post(submit("answers", prompt(20), 60))
    engine.step()
    engine.post(submit("prompt", prompt(1300, seed=1), 1))
    before = len(engine.tokens("answers"))
    while not engine.tokens("prompt"):
        engine.step()
    assert len(engine.tokens("answers")) - before >= 1300 // PAGE_TOKENS
    engine.run()
    engine.flush()
    engine.post(submit("alone", prompt(1300, seed=1), 1))
    engine.steps(4)
    assert engine.tokens("alone"), "three chunks of 512"
