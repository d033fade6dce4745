"""`python -m scripts.neighbours.node`: `tasuki`, whose grammars are tried by stand-ins.

A source that begins with a stand-in's word makes its trial spin, allocate, sleep or end, as a
harmful source would. All other sources are tried as usual.
"""

import sys
from dataclasses import replace
from typing import Any

from tasuki.engine.build_ranks import build_node_parts
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.server.daemon import fused
from tests.harness.trial_stand_ins import OBEYS


def _with_stand_ins(*asked: Any, **terms: Any) -> Any:
    parts = build_node_parts(*asked, **terms)
    vocabulary = parts.grammars.vocabulary
    assert vocabulary is not None
    trials = GrammarTrials.of(vocabulary, OBEYS)
    return replace(parts, grammars=GrammarCompiler(vocabulary, trials=trials))


if __name__ == "__main__":
    sys.exit(fused.main(sys.argv[2:], _with_stand_ins))
