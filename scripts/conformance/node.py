"""`python -m scripts.conformance.node serve MODEL FLAGS`: a node answering with a text given in the
prompt.

MODEL: folder of a checkpoint; its tokenizer, template and shape are used, and no weights. The
answer to a prompt is the JSON string after its last `say: `. There are no forwards, so no grammar
is followed and no token has a logprob.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tasuki.bench.load.free.runner import FreeForward, FreeRunner
from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import next_token
from tasuki.bench.load.node_main import free_parts
from tasuki.cli.conformance.checks.dictated import SAY
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import Event, Runner
from tasuki.engine.runner.rows import SequenceStates
from tasuki.server.daemon import fused
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.utils.logs import Progress

_NOTHING = "Nothing was asked for."


@dataclass(frozen=True)
class Dictation:
    """A source of answers dictated by prompts, in tokens. end: id of the token ending a turn."""

    tokenizer: Tokenizer
    end: int

    def answer_to(self, prompt: Sequence[int]) -> list[int]:
        """Return the answer's tokens and the token ending a turn. A prompt without a dictated text
        gets a fixed answer."""
        text = self.tokenizer.decode(prompt)
        _, found, order = text.rpartition(SAY)
        said = json.JSONDecoder().raw_decode(order)[0] if found else _NOTHING
        return [*self._tokens_of(str(said)), self.end]

    def _tokens_of(self, text: str) -> list[int]:
        """Encode a text like a model writes it: each tag known to the tokenizer is one token."""
        added = self.tokenizer.added_tokens
        pieces = re.split("(" + "|".join(map(re.escape, added)) + ")", text)
        return [
            token
            for piece in pieces
            for token in ([added[piece]] if piece in added else self.tokenizer.encode(piece))
        ]


@dataclass
class _Lane:
    """The sequence at one batch index. answer: None until its first sampled token. begins: number
    of tokens before the answer; known once the prompt is whole."""

    prompt: list[int] = field(default_factory=list)
    answer: list[int] | None = None
    begins: int = 0


class SayingRunner:
    """A runner of forward plans with dictated answers: each prompt contains its own
    (cli/conformance/dictated).

    Owns the prompt's and the answer's tokens at each batch index. The rest is a FreeRunner's.
    Thread rule: the engine loop's thread. REQUIRES: the uncached part of a prompt begins before the
    last `say: `; no sequence is preempted.
    """

    def __init__(self, inner: FreeRunner, lanes: int, dictation: Dictation) -> None:
        self._inner = inner
        self._dictation = dictation
        self._sequences = SequenceStates(lanes)
        self._lanes: dict[int, _Lane] = {}

    @property
    def ticks(self) -> int:
        return self._inner.ticks

    def prepare(self) -> None:
        self._inner.prepare()

    def check_device(self) -> None:
        self._inner.check_device()

    def record_event(self) -> Event:
        return self._inner.record_event()

    def launch(self, plan: ForwardPlan) -> FreeForward:
        """Launch a plan, like a Runner, and return the forward with the dictated tokens."""
        forward = self._inner.launch(plan)
        rows = self._sequences.apply(plan)
        for left in plan.left:
            del self._lanes[left]
        for item in plan.joined:
            self._lanes[item.batch_index] = _Lane()
        tokens = forward.sampled.tokens.copy()
        for row, number in enumerate(rows.batch_indices.tolist()):
            lane = self._lanes[number]
            if not rows.at_index[row] and lane.answer is None:
                begin = int(rows.tokens_at[row])
                lane.prompt += plan.tokens[begin : begin + int(rows.lengths[row])].tolist()
            if rows.num_sampled[row]:
                tokens[row] = self._next(lane, int(rows.stops[row]))
        return replace(forward, sampled=replace(forward.sampled, tokens=tokens))

    def _next(self, lane: _Lane, stop: int) -> int:
        """Return the answer's token at position `stop` of the sequence."""
        if lane.answer is None:
            lane.answer, lane.begins = self._dictation.answer_to(lane.prompt), stop
        place = stop - lane.begins
        return lane.answer[place] if place < len(lane.answer) else self._dictation.end


class NoTokenizer(Exception):
    """The model's folder has no tokenizer; the message names it and the fix."""


def parts(config: EngineConfig, progress: Progress, role: Role) -> EngineParts:
    """Build the parts of a node with dictated answers. Raises NoTokenizer."""
    found = free_parts(StepCost(), next_token, config, progress, role)
    tokenizer = Tokenizer.load(Path(config.model))
    if tokenizer is None:
        raise NoTokenizer(f"{config.model} has no tokenizer.json: give a checkpoint's folder")
    dictation = Dictation(tokenizer, found.model_config.eos_ids[0])
    return replace(found, runner=partial(_runner, dictation))


def _runner(dictation: Dictation, built: EngineParts, hands_on: bool) -> Runner:
    assert not hands_on
    slabs, vocabulary = built.arena.slabs, built.model_config.vocab
    return SayingRunner(FreeRunner(slabs, vocabulary, StepCost(), None), slabs, dictation)


def main(argv: Sequence[str]) -> int:
    """Run the node. argv: `serve` and its arguments."""
    return int(fused.main(argv[1:], parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
