"""`python -m scripts.neighbours.node ANSWERS serve FLAGS`: `tasuki serve` without forwards.

ANSWERS: a JSON file of token ids, repeated by all answers. A forward takes STEP_SECONDS. Some
grammars are replaced by stand-ins. A source starting with a stand-in's word makes its trial spin,
allocate, sleep or end, like a harmful source would. All other sources are tried as usual.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import Repeated
from tasuki.bench.load.node_main import free_parts
from tasuki.engine.assembly.parts import EngineParts
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.server.daemon import fused
from tests.harness.trial_stand_ins import OBEYS

STEP_SECONDS = 0.010


def _parts(answers: Path, config: Any, progress: Any, role: Any) -> EngineParts:
    cost = StepCost(STEP_SECONDS, 0.0, 0.0)
    parts = free_parts(cost, Repeated.read(answers), config, progress, role)
    model = parts.model_config
    vocabulary = Vocabulary.load(Path(config.model), model.vocab, model.eos_ids)
    assert vocabulary is not None
    trials = GrammarTrials.of(vocabulary, OBEYS)
    return replace(parts, grammars=GrammarCompiler(vocabulary, trials=trials))


if __name__ == "__main__":
    sys.exit(fused.main(sys.argv[3:], partial(_parts, Path(sys.argv[1]))))
