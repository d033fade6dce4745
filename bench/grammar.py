"""`tasuki bench grammar`: the CPU time of grammars in a decode step, with a vocabulary of the
model's size. Measures the token masks of constrained sequences, and the acceptance of sampled
tokens."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import made_up_vocabulary
from tasuki.model.grammar.constraint import Mask, allows
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, LogitAdjuster, TokensBefore
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import option

from .config import BenchConfig

_SEED = 16
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["a", "b", "c"]},
        "parts": {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["street", "number"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "age", "kind", "parts"],
    "additionalProperties": False,
}
"""A JSON schema with answers too long to end within a measurement."""
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


@dataclass(frozen=True)
class GrammarConfig:
    rows: int = option(32, "of a step that follow a grammar")
    steps: int = option(64, "timed")


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench grammar",
        "Time what grammars cost the host at a step.",
        argv,
        BenchConfig,
        GrammarConfig,
    )
    vocab = config.model_config().vocab
    grammars = GrammarCompiler(made_up_vocabulary(vocab))
    began = time.process_time()
    grammars.prepare()
    prepared = time.process_time() - began
    began = time.process_time()
    grammars.constraint(GRAMMAR, ())
    compiling = time.process_time() - began
    report = config.reported(f"grammar {config.model}")
    report.add(Row(f"the tree of {vocab} tokens, once", prepared))
    report.add(Row("compile a schema", compiling))
    seconds = _steps(grammars, vocab, own.rows, own.steps)
    extra = {"p99 ms": 1e3 * sorted(seconds)[int(0.99 * (len(seconds) - 1))]}
    report.add(Row(f"host's part of a step, {own.rows} rows", median(seconds), extra=extra))
    return 0


def _steps(grammars: GrammarCompiler, vocab: int, rows: int, steps: int) -> list[float]:
    """Return the CPU seconds of each step. grammars: one for each constrained sequence. rows:
    sequences in a step; those without a grammar cost nothing here."""
    params = SamplingParams(grammar=GRAMMAR)
    before = TokensBefore.of(params, np.zeros(1, dtype=np.int32), ())
    adjusters = [
        LogitAdjuster(params, frozenset(), vocab, before, grammars.constraint(GRAMMAR, ()))
        for _ in range(rows)
    ]
    rng, found = np.random.default_rng(_SEED), []
    drawn: list[int] = []
    for _ in range(steps):
        began = time.thread_time()
        for adjuster, token in zip(adjusters, drawn, strict=bool(drawn)):
            adjuster.append(token)
        adjusted = AdjustedRows.of(adjusters)
        found.append(time.thread_time() - began)
        masks = adjusted.masks.numpy().view("<i4")
        drawn = [_any_allowed(rng, mask) for mask in masks]
    return found


def _any_allowed(rng: np.random.Generator, mask: Mask) -> int:
    word = int(rng.choice(mask.nonzero()[0]))
    tokens = [token for token in range(32 * word, 32 * word + 32) if allows(mask, token)]
    return int(rng.choice(tokens))
