"""`python -m scripts.conformance.node serve MODEL FLAGS`: a node that says what it is asked for.

MODEL: folder of a checkpoint, of which tokenizer, template and shape are used and no weight. The
answer to a prompt is the JSON string behind its last `say: `. There are no forwards, so no grammar
is followed and no token has a logprob.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tasuki.bench.load.free.runner import FreeRunner
from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import next_token
from tasuki.bench.load.node_main import free_parts
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.runner.base import Runner
from tasuki.server.daemon import fused
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.utils.logs import Progress

from .saying_runner import Dictation, SayingRunner


class NoTokenizer(Exception):
    """The model's folder has no tokenizer; the message names it and the mend."""


def parts(config: EngineConfig, progress: Progress, role: Role) -> EngineParts:
    """Raises NoTokenizer."""
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
    """argv: serve and its flags."""
    return int(fused.main(argv[1:], parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
