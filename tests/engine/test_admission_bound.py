"""The longest accepted request, to the token. One that just fits is answered. One longer is
rejected before it holds anything, with the number that would fit."""

from dataclasses import replace

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import prompt, submit, tiny_engine, tiny_parts

CONTEXT = 256


def short_parts() -> EngineParts:
    """Return parts of a model with a short context."""
    parts = tiny_parts()
    return replace(parts, model_config=replace(parts.model_config, max_position=CONTEXT))


@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("by", ["context", "arena"])
def test_the_bound_is_exact(by: str, new: int) -> None:
    engine = tiny_engine(parts=short_parts() if by == "context" else tiny_parts(slabs=8))
    most = engine.engine.max_request_tokens
    if by == "context":
        assert most == CONTEXT
    else:
        assert 64 < most < 4096
    # The answer's last token is never forwarded.
    fits = most - new + 1
    assert len(engine.ask("fits", prompt(fits), new)) == new
    for name, length, tokens in (("longer", fits + 1, new), ("more", fits, new + 1)):
        engine.post(submit(name, prompt(length), tokens))
        error = engine.rejected(name)
        assert error.kind is m.ErrorKind.TOO_LONG
        assert f"needs {most + 1}, but at most {most} fit" in error.message
    engine.assert_at_rest()


def test_a_room_s_bound_is_exact() -> None:
    with engine_pair(short_parts(), tiny_parts()) as pair:

        def reserve(transfer_id: int, length: int) -> m.Outbox:
            transfer_request = m.TransferRequest(
                m.TransferId(transfer_id), 1, 0, SamplingParams(), b""
            )
            pair.prefill.post(
                m.PrefillReserve(transfer_request, np.array(prompt(length), np.int32))
            )
            pair.prefill.step()
            said = [each for each in pair.prefill.said if not isinstance(each, m.PrefillLoad)][-1]
            pair.prefill.post(m.PrefillEnd(m.TransferId(transfer_id)))
            return said

        assert isinstance(reserve(1, CONTEXT), m.PrefillAccepted)
        refused = reserve(2, CONTEXT + 1)
        assert isinstance(refused, m.PrefillRefused)
        assert refused.error.kind is m.ErrorKind.TOO_LONG
