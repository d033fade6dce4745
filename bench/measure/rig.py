"""A rig: one engine over random weights, stepped by the bench, with the emission time of each
token.

Measures the time an API server waits: from the engine's Submit to its TokenOut. Single-threaded, so
no queue adds time.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tasuki.bench.errors import BenchError
from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.assembly.parts import (
    EngineParts,
    activations_of,
    build_arena,
    torch_device,
    use_device,
)
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import assemble, build_model
from tasuki.model.grammar.grammar import Grammar
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.model.quantise.checkpoint import RECIPES
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.source import RandomSource, TensorSource
from tasuki.pycache._cpp_cache import StepCounter
from tasuki.pycache.layout import CacheLayout

_VOCABULARY_SEED = 16
_LETTERS = b'etaoinshrdlucmfwypvbgkjqxz 0123456789",:{}[]\n'


def made_up_vocabulary(size: int) -> Vocabulary:
    """Return a made-up vocabulary for grammars over random weights, the same each time. It has
    every byte, and words of a few letters, up to `size` tokens. The last token ends answers."""
    rng = np.random.default_rng(_VOCABULARY_SEED)
    words = {bytes([byte]): None for byte in range(256)}
    letters = np.frombuffer(_LETTERS, dtype=np.uint8)
    while len(words) < size - 1:
        for length in rng.integers(2, 9, size // 4).tolist():
            words[rng.choice(letters, length).tobytes()] = None
    return Vocabulary((*list(words)[: size - 1], b""), (size - 1,))


SEED = 1


@dataclass
class Answer:
    """One request's answer. tokens: token ids. times: emission time of each. usage: the usage
    reported at its end."""

    submitted: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    usage: m.Usage | None = None

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.submitted

    @property
    def token_seconds(self) -> float:
        """Return the mean seconds between an answer's tokens. REQUIRES: the answer has two tokens
        or more."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


class Rig:
    def __init__(
        self, model: ModelConfig, config: EngineConfig, parts: EngineParts | None = None
    ) -> None:
        """Build the engine. parts: its weights, arena and more; default: random weights."""
        self.parts = parts or random_parts(model, config)
        cache = build_cache(config, self.parts)
        self._engine = build_fused_engine(config, self.parts, cache)
        self._engine.prepare()
        self.model = model
        self._answers: dict[str, Answer] = {}
        self._generator = np.random.default_rng(SEED)

    def prompt(self, tokens: int) -> list[int]:
        """Return `tokens` random token ids, another list each time."""
        drawn: list[int] = self._generator.integers(0, self.model.vocab, tokens).tolist()
        return drawn

    def submit(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        grammar: Grammar | None = None,
        temperature: float = 0.0,
        thinking: ThinkingBudget | None = None,
    ) -> Answer:
        """Submit a prompt, and return its answer, filled by later steps. new_tokens: tokens of the
        answer. grammar: constrains the answer; it is compiled first. temperature: above 0 each
        answer has its own noise. thinking: thinking budget in tokens."""
        if grammar is not None:
            self._compile(grammar)
        number = len(self._answers)
        name = f"bench-{number}"
        answer = self._answers[name] = Answer(time.perf_counter())
        sampling = SamplingParams(
            max_new_tokens=new_tokens,
            temperature=temperature,
            seed=number,
            ignore_eos=True,
            grammar=grammar,
            thinking=thinking,
        )
        ids = np.asarray(prompt, dtype=np.int32)
        self._engine.handle(m.Submit(m.RequestId(name), ids, sampling))
        return answer

    def _compile(self, grammar: Grammar) -> None:
        while not self.parts.grammars.ready(grammar):
            self.parts.grammars.wait()

    def step(self) -> bool:
        """Run one engine step, and record its tokens. Returns False if there was nothing to do.
        Raises BenchError if a request fails."""
        worked = self._engine.step()
        now = time.perf_counter()
        for message in m.tokens_apart(self._engine.take_outbox()):
            self._note(message, now)
        return worked

    def run(self) -> None:
        """Run steps until every answer has ended. Raises BenchError if an answer cannot run."""
        while True:
            worked = self.step()
            waiting = [name for name, answer in self._answers.items() if answer.usage is None]
            if not waiting:
                return
            if not worked:
                raise BenchError(f"{', '.join(waiting)}: cannot run: give a larger --arena-mib")

    def rest(self) -> None:
        """Run steps until every answer has ended, and every copy between the arena and lower
        tiers."""
        self.run()
        while self.step():
            pass

    @property
    def computed_behind_loads(self) -> int:
        """Return the number of prompts computed in part while their cached prefix was still being
        loaded from a lower tier."""
        return self._engine.computed_behind_loads

    def close(self) -> None:
        """Close the engine. REQUIRES: no request runs now or later."""
        self._engine.close()

    def run_until_tokens(self, answers: Sequence[Answer], tokens: int) -> None:
        """Run steps until each of the answers has `tokens` tokens. Raises BenchError."""
        while any(len(answer.tokens) < tokens for answer in answers):
            if not self.step():
                raise BenchError("an answer ended early: give a larger --arena-mib")

    def abort(self, answers: Sequence[Answer]) -> None:
        """Abort the answers, then run steps until every answer of this rig has ended."""
        wanted = {id(answer) for answer in answers}
        for name, answer in self._answers.items():
            if id(answer) in wanted:
                self._engine.handle(m.Abort(m.RequestId(name)))
        self.run()

    def end(self, answers: Sequence[Answer]) -> None:
        """Abort the answers and forget every cached prefix. REQUIRES: no other request runs."""
        self.abort(answers)
        self.flush()

    def flush(self) -> None:
        """Forget every cached prefix. REQUIRES: no request runs."""
        self._engine.handle(m.FlushCache(0))
        self._engine.take_outbox()

    def _note(self, message: m.Outbox, now: float) -> None:
        if isinstance(message, m.TokenOut):
            answer = self._answers[message.request_id]
            answer.tokens.append(message.token)
            answer.times.append(now)
        elif isinstance(message, m.Finished):
            self._answers[message.request_id].usage = message.usage
        elif isinstance(message, m.Rejected):
            raise BenchError(f"{message.request_id} was refused: {message.error.message}")


def page_ids(layout: CacheLayout, slabs: Iterable[int]) -> list[int]:
    """Return the ids of all pages of the given slabs, slab by slab, in the order a cache allocates
    them."""
    return [
        slab * layout.blocks_per_slab + page
        for slab in slabs
        for page in range(layout.pages_per_slab)
    ]


def random_parts(
    model: ModelConfig, config: EngineConfig, role: Role = Role.FUSED, quantization: str = ""
) -> EngineParts:
    """Return the engine parts of build_parts(), with random weights generated on the device instead
    of read. role: role of the engine. quantization: format of the weights; empty: plain."""
    device = torch_device(config)
    use_device(device)
    arena = build_arena(config, model, device, role)
    weights = drawn_weights(model, config, quantization)
    grammars = GrammarCompiler(made_up_vocabulary(model.vocab))
    built = build_model(model, weights, Assembly(activations=activations_of(config)))
    return EngineParts(model, built, arena, StepCounter(), grammars=grammars)


def drawn_weights(model: ModelConfig, config: EngineConfig, quantization: str = "") -> Weights:
    """Return random weights of the config's dtype on the config's device. quantization: format of
    the weights; empty: plain."""
    device = torch_device(config)
    source: TensorSource = RandomSource(SEED, device)
    if quantization:
        source = QuantisedSource(source, RECIPES[quantization])
    weights = assemble(model, source, getattr(torch, config.compute_dtype), device)
    # Sampling weights leaves float32 copies behind; loading a checkpoint does not.
    torch.cuda.empty_cache()
    return weights
