"""A trace that is made short for real daemons: prompts share what they shared, in fewer tokens."""

import numpy as np

from tasuki.bench.fleet.workload import Workload
from tasuki.bench.replay.prompts import Texts
from tasuki.bench.replay.trace import Trace, TraceRequest, shortened

BLOCK, FACTOR = 64, 32
VOCABULARY = 2000


def request(at: int, prompt: int, blocks: list[int], agent: int = 0) -> TraceRequest:
    ids = np.array(blocks, dtype=np.int64)
    return TraceRequest(at, prompt, 200, ids, (3, agent), "tool_use")


SAID = Trace(
    "said",
    BLOCK,
    (
        request(0, 6 * BLOCK + 40, [1, 2, 3, 4, 5, 6, 90]),
        request(1000, 4 * BLOCK, [1, 2, 3, 9], agent=1),
        request(8000, 14 * BLOCK, [1, 2, 3, 4, 5, 6, *range(20, 28)]),
        request(9000, 14 * BLOCK, list(range(50, 64)), agent=2),
    ),
)


def test_a_shortened_trace_shares_what_the_trace_shared() -> None:
    short = shortened(SAID, FACTOR, turns=3, answer_tokens=4, slower=0.5)
    assert short.block_tokens == BLOCK // FACTOR
    assert [each.prompt_tokens for each in short.requests] == [13, 8, 28]
    assert [each.answer_tokens for each in short.requests] == [4, 4, 4]
    assert [each.timestamp_ms for each in short.requests] == [0, 500, 4000]
    assert [len(each.block_ids) for each in short.requests] == [7, 4, 14]
    workload = Workload(short, 1, "recorded", 0.0, 0)
    first, agent = sorted(workload.first_turns(), key=lambda turn: turn.index)
    following = workload.next_turn(first, ended=5.0)
    assert following is not None and following[1] == 5.0
    later = workload.tokens(following[0])
    assert np.array_equal(workload.tokens(first), later[:17]), "prompt and answer"
    assert np.array_equal(workload.prompt(agent)[:6], later[:6])
    assert not set(workload.prompt(agent)[6:].tolist()) & set(later.tolist())


def test_a_request_keeps_a_token_and_an_answer_of_one() -> None:
    tiny = Trace("tiny", BLOCK, (request(0, 20, [1]),))
    (only,) = shortened(tiny, FACTOR, turns=5, answer_tokens=1, slower=1.0).requests
    assert (only.prompt_tokens, only.answer_tokens, only.block_ids.tolist()) == (1, 1, [1])


def test_a_prompt_holds_what_was_answered_in_it() -> None:
    texts = Texts(VOCABULARY)
    places = np.arange(1000, 1030, dtype=np.int32)
    before = texts.prompt(places)
    assert before == texts.prompt(places)[:30] and len(set(before)) > 25
    assert all(0 <= token < VOCABULARY for token in before)
    texts.answer(places[10:13], (7, 8, 9))
    assert texts.prompt(places) == (*before[:10], 7, 8, 9, *before[13:])
