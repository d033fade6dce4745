"""Answers with scripted acceptance of drafts, in an engine doing all the work of drafts.

The model's head is zero, so every logit is zero and noise alone decides the sample. An answer is
therefore known in advance, on any device. A draft equal to the answer's token is accepted, and any
other is not. The node's own drafters look for drafts as for any answer, including the draft layer's
guesses. The script replaces their drafts with its own, and the engine verifies these as usual. The
tokens of an answer differ, so experts are activated as by any text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tasuki.bench.errors import BenchError
from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, activations_of
from tasuki.engine.config import EngineConfig
from tasuki.engine.forward_plan import Ints
from tasuki.engine.speculation.drafting import Drafter, Drafting, DraftSource
from tasuki.engine.speculation.speculation import Speculation
from tasuki.model.drafts import DraftHead, draft_ids
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import build_model
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample
from tasuki.model.weights.matrix import Matrix

_AT_ONCE = 1024
"""Number of tokens computed in one call. On the device each token has a row of its own for partial
results over the vocabulary."""


def known_answer(
    sampling: SamplingParams, first: int, vocab: int, dtype: torch.dtype, device: torch.device
) -> Ints:
    """Return all tokens of an answer sampled from equal logits. first: position of the answer's
    first token. dtype: dtype of the logits. REQUIRES: the temperature is 1, and no filter or
    penalty applies."""
    positions: Ints = np.arange(first, first + sampling.max_new_tokens, dtype=np.int32)
    logits = torch.zeros(1, vocab, dtype=dtype, device=device)
    drawn = [
        _on_gpu(logits, sampling, some)
        if device.type == "cuda"
        else _on_cpu(logits, sampling, some)
        for some in np.array_split(positions, -(-len(positions) // _AT_ONCE))
    ]
    return np.concatenate(drawn)


def _on_cpu(logits: Tensor, sampling: SamplingParams, positions: Ints) -> Ints:
    rows = logits.float().expand(len(positions), -1)
    drawn = sample(rows, [sampling] * len(positions), positions.tolist())
    return np.array([one.token for one in drawn], dtype=np.int32)


def _on_gpu(logits: Tensor, sampling: SamplingParams, positions: Ints) -> Ints:
    from tasuki.model.ops.sampling.sample import Draws
    from tasuki.model.ops.sampling.sample import sample as sample_on_gpu

    count, device = len(positions), logits.device
    draws = Draws.empty(count, device)
    draws.temperature.fill_(sampling.temperature)
    draws.keys.copy_(torch.tensor(noise_key(sampling.seed), dtype=torch.int32))
    draws.positions.copy_(torch.from_numpy(positions))
    rows = torch.tensor([count], dtype=torch.int32, device=device)
    sample_on_gpu(logits.expand(count, -1), draws, rows)
    found: Ints = draws.token.cpu().numpy()
    return found


_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio. Its multiples modulo 1 fill [0, 1) evenly at any count, so few steps accept the
same share of drafts as many."""


@dataclass(frozen=True)
class Script:
    """The scripted acceptance of drafts. likely: for each draft of a step, the probability of
    accepting it after the earlier ones, in [0, 1]."""

    likely: tuple[float, ...]

    @staticmethod
    def parse(text: str, drafts: int) -> "Script":
        """Parse probabilities like ".80/.75/.72" for `drafts` drafts; the last one repeats for
        further drafts. Raises ValueError."""
        try:
            likely = [float(number) for number in text.split("/")]
        except ValueError:
            likely = []
        if not likely or not all(0 <= part <= 1 for part in likely):
            raise ValueError(f"accept {text!r}: write how likely drafts hold, as .80/.75/.72")
        likely += likely[-1:] * drafts
        return Script(tuple(likely[:drafts]))

    @property
    def reached(self) -> list[float]:
        """Return, for each place of a draft, the probability of accepting all drafts up to and
        including it."""
        return list(accumulate(self.likely, mul))

    @property
    def tokens(self) -> float:
        """Return the mean number of tokens an answer receives in a step."""
        return 1 + sum(self.reached)

    def __str__(self) -> str:
        return "/".join(f"{part:.2f}" for part in self.likely)


class _Draws:
    """An evenly distributed sequence of numbers in [0, 1), common to all answers."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> float:
        self._count += 1
        return self._count * _GOLDEN % 1


class ScriptedDrafter:
    def __init__(self, script: Script, answer: Ints, drafter: Drafter, draws: _Draws) -> None:
        """Set up a drafter. answer: the token ids to be sampled. drafter: the node's drafter, run
        for its cost only. draws: numbers deciding the acceptance."""
        self._script = script
        self._answer = answer
        self._drafter = drafter
        self._draws = draws

    @property
    def source(self) -> DraftSource:
        return self._drafter.source

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        """Return up to `most` drafts: first right ones by the script, then wrong ones. output:
        tokens of the answer so far. Raises BenchError if they differ from the known answer."""
        length = len(output)
        if length and output[-1] != self._answer[length - 1]:
            raise BenchError(
                f"token {length - 1} of an answer is {output[-1]}, and the noise draws "
                f"{self._answer[length - 1]}: logits differ, so that no draft holds as scripted"
            )
        self._drafter.propose(output, most)
        drawn = self._draws.next()
        tokens = self._answer[length : length + most].tolist()
        return [
            # A wrong draft: 0, or 1 if the right token is 0.
            token if drawn < part else int(token == 0)
            for token, part in zip(tokens, self._script.reached, strict=False)
        ]

    def verified(self, drafted: int, accepted: int) -> None:
        self._drafter.verified(drafted, accepted)


class ScriptedSpeculation(Speculation):
    """Speculation with scripted drafts for every answer, from the config's drafter."""

    def __init__(
        self, script: Script, config: EngineConfig, answer: Callable[[m.Submit], Ints]
    ) -> None:
        """Set up the speculation. answer: function returning the token ids to be sampled for a
        request."""
        super().__init__(
            len(script.likely),
            from_tree=config.drafts_from_tree,
            by_layer=config.drafts_by_layer,
        )
        self._script = script
        self._predicted = config.speculate == "prediction"
        self._answer = answer
        self._draws = _Draws()

    def drafting(self, message: m.Submit) -> Drafting | None:
        answer = self._answer(message)
        if self._predicted:
            message = replace(message, prediction=answer)
        own = super().drafting(message)
        assert own is not None
        own.drafters = [
            ScriptedDrafter(self._script, answer, one, self._draws) for one in own.drafters
        ]
        return own


def scripted(parts: EngineParts, config: EngineConfig, script: Script) -> EngineParts:
    """Return the engine parts with known answers and scripted drafts. The parts must have no other
    owner, as in drawing_by_noise()."""
    parts = drawing_by_noise(parts, config)
    head, vocab = parts.model.weights.head.plain, parts.model.config.vocab
    # Answers are drawn between the steps of a serving node, ahead of their kernels.
    beside = torch.cuda.Stream(head.device, priority=-1) if head.is_cuda else None  # type: ignore[no-untyped-call]

    def answer(message: m.Submit) -> Ints:
        with torch.cuda.stream(beside):
            first = len(message.prompt)
            return known_answer(message.sampling, first, vocab, head.dtype, head.device)

    return replace(parts, speculation=ScriptedSpeculation(script, config, answer))


def drawing_by_noise(parts: EngineParts, config: EngineConfig) -> EngineParts:
    """Return the engine parts with all-zero logits, also in the draft layer. The parts must have no
    other owner: an untied head is cleared in place, because a GPU has no memory for another."""
    model, weights = parts.model, parts.model.weights
    plain = weights.head.plain
    tied = plain.data_ptr() == weights.embedding.data_ptr()
    head = Matrix.of(torch.zeros_like(plain) if tied else plain.zero_())
    ids = draft_ids(Path(config.model), model.config.vocab, model.config.eos_ids)
    drafts = DraftHead.of(head, ids) if config.drafts_by_layer else None
    assembly = Assembly(drafts, activations=activations_of(config))
    zero = build_model(model.config, replace(weights, head=head), assembly)
    return replace(parts, model=zero)
