"""An answer with a handed-over prompt has as many drafts, and as many accepted, as one computed on
one node. This holds for every source of drafts, also if the second token came from an early step.
The same holds for one node with a prompt one token longer."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import golden, reference_dir

MODEL = "small-dense"
PROMPT = golden(MODEL, "long").prompt
NEW = 32
DRAFTERS = ("mtp", "prediction", "tree", "mtp+tree")


def parts() -> EngineParts:
    return build_parts(engine_config(reference_dir(MODEL)))


def sampling(new: int) -> SamplingParams:
    """Return hot sampling. The noise, shared with drafts, decides most tokens, so a layer of random
    weights is right."""
    return SamplingParams(max_new_tokens=new, temperature=100.0, seed=3, ignore_eos=True)


@cache
def answer() -> list[int]:
    engine = Lone(engine_config(reference_dir(MODEL), speculate="off"), parts=parts())
    return engine.ask("r", PROMPT, NEW, sampling=sampling(NEW))


def asked(name: str, drafter: str, given: int = 0) -> m.Submit:
    """Return the request for the rest of its answer after `given` tokens, with the source of its
    drafts."""
    prediction = np.empty(0, dtype=np.int32)
    if drafter == "prediction":
        prediction = np.array(answer(), dtype=np.int32)
        prediction[[9, 20]] ^= 1
    tokens = PROMPT + answer()[:given]
    new = NEW - given
    return submit(name, tokens, new, sampling=sampling(new), prediction=prediction[given:])


def begin(engine: Lone, drafter: str) -> None:
    """Let the tree's drafter find the answer, except one token, after the prompt's end."""
    if "tree" in drafter:
        text = answer().copy()
        text[12] += 1
        engine.ask("before", PROMPT[-8:] + text + PROMPT[:3], 1)


@cache
def of_one_node(drafter: str, given: int) -> tuple[int, int]:
    """Return (drafted, accepted) of a cold run."""
    config = engine_config(reference_dir(MODEL), speculate=drafter, draft_tokens=3)
    engine = Lone(config, parts=parts())
    begin(engine, drafter)
    engine.post(asked("r", drafter, given))
    engine.run()
    assert engine.tokens("r") == answer()[given:]
    usage = engine.finished("r").usage
    assert usage.accepted_tokens > NEW // 4
    return usage.drafted_tokens, usage.accepted_tokens


@pytest.fixture
def pair(drafter: str) -> Iterator[EnginePair]:
    settings = {"speculate": drafter, "draft_tokens": 3}
    with engine_pair(parts(), parts(), settings=settings) as both:
        both.decode.post(m.PeersChanged(False))
        begin(both.decode, drafter)
        both.decode.post(m.PeersChanged(True))
        yield both
        both.decode.assert_at_rest()


def counts(pair: EnginePair) -> tuple[int, int]:
    assert pair.decode.tokens("r") == answer()
    usage = pair.decode.finished("r").usage
    return usage.drafted_tokens, usage.accepted_tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_first_step_behind_a_hand_over_is_drafted_as_in_one_node(
    drafter: str, pair: EnginePair
) -> None:
    transfer = pair.hand_over(asked("r", drafter))
    pair.ready(transfer, None)
    assert isinstance(pair.done(transfer), m.RemoteDone)
    pair.decode.run()
    assert counts(pair) == of_one_node(drafter, 0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_so_is_the_one_behind_an_early_step(drafter: str, pair: EnginePair) -> None:
    pair.link.bytes_per_second = 2e6
    pair.join(pair.begin(asked("r", drafter)))
    pair.link.bytes_per_second = None
    assert pair.early.counters["begun"] == 1
    assert counts(pair) == of_one_node(drafter, 1)
