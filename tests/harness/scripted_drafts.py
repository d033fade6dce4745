"""Drafts for an engine driven by hand. A test sets their number and their acceptance.

Also requests of answers with drafts beside answers without, and the equalities to check. Also the
KV entries an engine stored for its draft layer, compared with one forward of the CPU path.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.speculation.draft_limit import DraftLimit, FixedLimit, StepShape
from tasuki.engine.speculation.drafting import Drafting, DraftSource
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.pycache.arena import run_copies
from tests.harness.engines import TINY, Lone, prompt, submit
from tests.harness.goldens import Request, Workspace


class ScriptedDrafter:
    """A drafter proposing the known answer, with a wrong token at a scripted place. held: number of
    right drafts before the wrong one, for each step."""

    source = DraftSource.TREE

    def __init__(self, answer: Sequence[int], held: Iterator[int]) -> None:
        self._answer = answer
        self._held = held

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        assert list(output) == list(self._answer[: len(output)])
        drafts = list(self._answer[len(output) : len(output) + most])
        wrong = next(self._held)
        if wrong < len(drafts):
            drafts[wrong] = (drafts[wrong] + 1) % TINY["vocab_size"]
        return drafts

    def verified(self, drafted: int, accepted: int) -> None:
        return None


def draft(
    engine: Lone, answers: Mapping[str, Sequence[int]], most: int, held: Iterator[int]
) -> None:
    """Draft known answers from now on. answers: tokens by request id; other requests get no drafts.
    most: largest number of drafts. held: numbers of right drafts."""

    def drafting(message: m.Submit) -> Drafting | None:
        answer = answers.get(message.request_id)
        return None if answer is None else Drafting([ScriptedDrafter(answer, held)], most)

    engine.engine._handover._speculation.drafting = drafting  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Landed:
    shape: StepShape
    tokens: int
    seconds: float
    planned: bool


class ScriptedLimit(FixedLimit):
    """A limit on drafts with another scripted number each step. It records the measurements it
    receives."""

    def __init__(self, numbers: Iterator[int], cuts: Iterator[int]) -> None:
        """Set the scripted limits. numbers: drafts each answer may propose, step by step. cuts:
        limits on the proposed drafts, step by step."""
        super().__init__(0)
        self._numbers = numbers
        self._cuts = cuts
        self.completions: list[Landed] = []

    @property
    def watched(self) -> int:
        return 2

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return next(self._numbers)

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        return next(self._cuts)

    def completed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        self.completions.append(Landed(shape, tokens, seconds, planned))


def any_limit(seed: int, most: int) -> ScriptedLimit:
    def numbers(generator: Random) -> Iterator[int]:
        while True:
            yield max(0, generator.randrange(-2, most + 1))

    return ScriptedLimit(numbers(Random(seed)), numbers(Random(seed + 1)))


def limited(engine: Lone, limit: DraftLimit) -> None:
    engine.engine._scheduler._drafts = limit


def entries(kv: torch.Tensor, pages: list[int], tokens: int) -> torch.Tensor:
    """Return a draft layer's KV entries on the host, [2, kv_heads, positions 1 to tokens - 1,
    head_dim]."""
    return kv[pages].cpu().permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, 1:tokens]


def assert_kept_as_by_one_forward(
    engine: Lone, tokens: list[int], oracle: Qwen35Model | None = None
) -> int:
    """Check the draft layer's KV entries and carried state before the engine's cached state: they
    equal those of one forward. Returns the number of cached tokens. oracle: the reference model on
    the CPU, by default the engine's own."""
    cache, arena = engine.engine._cache, engine.parts.arena
    allocation = cache.allocate(
        np.asarray(tokens, dtype=np.int32), capacity_tokens=len(tokens), working_slots=1
    )
    assert allocation is not None
    run_copies(arena, cache.take_copies())
    kept, slot = allocation.cached_tokens, allocation.working_slots[0]
    if not kept:
        cache.release(allocation)
        return 0
    one = Request(Workspace(oracle or engine.parts.model), kept)
    one.forward(tokens[:kept])
    other = one.workspace.arena
    found = entries(arena.views("kv")[-1], allocation.pages.tolist(), kept)
    expected = entries(other.views("kv")[-1], one.pages, kept)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    carried = other.views("carry")[0][one.slots[0]]
    torch.testing.assert_close(arena.views("carry")[0][slot].cpu(), carried, atol=2e-4, rtol=0)
    cache.release(allocation)
    return kept


NEW = 30
GREEDY = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=NEW, temperature=60.0, seed=11, ignore_eos=True)
PENALISED = replace(
    DRAWN, temperature=1.0, presence_penalty=1.5, repetition_penalty=1.7, min_p=0.001
)
LIKELIEST = replace(DRAWN, top_logprobs=3, top_p=0.9, top_k=60)
THOUGHTFUL = replace(DRAWN, thinking=ThinkingBudget(9, (10, 99, 10), 99))
KINDS = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "penalised": PENALISED,
    "likeliest": LIKELIEST,
    "thoughtful": THOUGHTFUL,
}


def answered(engine: Lone, tokens: Sequence[int], sampling: SamplingParams) -> list[m.TokenOut]:
    engine.post(submit("r", tokens, sampling.max_new_tokens, sampling=sampling))
    engine.run()
    return engine.all_said(m.TokenOut)


def assert_same(engine: Lone, plain: Lone, tokens: Sequence[int]) -> None:
    """Assert equal results of the engine with drafts and the plain one. Both got the same requests,
    in the same order."""
    mine, theirs = engine.all_said(m.TokenOut), plain.all_said(m.TokenOut)
    assert [(t.token, t.index) for t in mine] == [(t.token, t.index) for t in theirs]
    for field in ("logprob", "margin"):
        values = [[getattr(t, field) for t in said] for said in (mine, theirs)]
        assert values[0] == pytest.approx(values[1], abs=2e-4)
    assert [[token for token, _ in t.top] for t in mine] == [
        [token for token, _ in t.top] for t in theirs
    ]
    assert engine.tree() == plain.tree()
    ends = [node.finished("r") for node in (engine, plain)]
    assert ends[0].reason is ends[1].reason
    answer = [t.token for t in theirs]
    second = [*tokens, *answer, *prompt(20, seed=9)]
    assert engine.ask("t2", second, 3) == plain.ask("t2", second, 3)
    assert engine.hit("t2") == plain.hit("t2")
    engine.assert_at_rest()


def any_pattern(seed: int) -> Iterator[int]:
    generator = Random(seed)
    while True:
        yield generator.randrange(6)
