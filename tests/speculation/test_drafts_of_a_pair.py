"""A handed-over prompt with its answer drafted on the decode node: the same tokens, with and
without a second token from an early step. The cached state serves the next turn."""

from collections.abc import Iterator

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import alone, prompt, submit, tiny_parts

NEW = 24
DRAWN = SamplingParams(max_new_tokens=NEW, temperature=60.0, seed=5, ignore_eos=True)


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both
        both.decode.assert_at_rest()


@pytest.mark.parametrize("early", [True, False], ids=["early step", "at Done"])
@pytest.mark.parametrize("broken", [None, 0, 1, 2, 9])
def test_a_handed_over_prompt_is_drafted_from_its_prediction(
    broken: int | None, early: bool, pair: EnginePair
) -> None:
    tokens = prompt(150)
    answer = alone(tokens, NEW, sampling=DRAWN)
    prediction = np.array(answer, dtype=np.int32)
    if broken is not None:
        prediction[broken] ^= 1
    asked = submit("r", tokens, NEW, sampling=DRAWN, prediction=prediction)
    if early:
        pair.link.bytes_per_second = 2e6
        pair.join(pair.begin(asked))
        pair.link.bytes_per_second = None
    else:
        transfer = pair.hand_over(asked)
        pair.ready(transfer, None)
        assert isinstance(pair.done(transfer), m.RemoteDone)
        pair.decode.run()
    assert pair.decode.tokens("r") == answer
    usage = pair.decode.finished("r").usage
    assert usage.accepted_tokens >= 14
    turn = tokens + answer + prompt(30, seed=6)
    pair.decode.post(m.PeersChanged(False))
    assert pair.decode.ask("next", turn, 5) == alone(turn, 5)
    assert pair.decode.hit("next").usable_tokens == 150 + NEW - 1


def test_a_hand_over_that_is_lost_is_drafted_where_it_goes_on(pair: EnginePair) -> None:
    tokens = prompt(150)
    answer = alone(tokens, NEW, sampling=DRAWN)
    prediction = np.array(answer, dtype=np.int32)
    transfer = pair.hand_over(submit("r", tokens, NEW, sampling=DRAWN, prediction=prediction))
    pair.ready(transfer, None)
    pair.flushed(transfer)
    pair.decode.post(m.HandoverFailed(transfer.transfer_request.transfer_id, "lost on purpose"))
    pair.decode.run()
    assert pair.decode.tokens("r") == answer
    assert pair.decode.finished("r").usage.accepted_tokens >= 14
    pair.prefill.post(m.PrefillEnd(transfer.transfer_request.transfer_id))
    pair.receiver.forget(transfer.transfer_request.transfer_id)
    pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
