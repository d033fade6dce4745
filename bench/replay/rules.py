"""The checkpoints that a replay keeps of a request: by the engine's rules, or by those of a
peer."""

from dataclasses import dataclass

from tasuki.pycache._cpp_cache import CheckpointKind

from .trace import Trace


@dataclass(frozen=True)
class ReplayRules:
    """`kinds`: states that are kept. `grain_tokens`: what a prompt shares with others, and where an
    answer's state stands, is a multiple of it."""

    kinds: frozenset[CheckpointKind] = frozenset(CheckpointKind)
    grain_tokens: int = 1


def rules_of(policy: str, trace: Trace) -> ReplayRules:
    """Of marconi its paper's admission, elsewhere the engine's."""
    return ends_and_branches(trace) if policy == "marconi" else ReplayRules()


def ends_and_branches(trace: Trace) -> ReplayRules:
    """A state where the answer ends and one where the prompt branches off, both in whole blocks:
    what simulators keep that know a trace's blocks only."""
    kinds = frozenset({CheckpointKind.TURN_END, CheckpointKind.BRANCH})
    return ReplayRules(kinds, trace.block_tokens)
