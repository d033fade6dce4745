"""What a replay keeps of a request: the engine's rules, or those of what it is compared with."""

from dataclasses import dataclass

from ..pycache._cpp_cache import CheckpointKind


@dataclass(frozen=True)
class ReplayRules:
    """`kinds`: states that are kept. `grain_tokens`: what a prompt shares with others, and where an
    answer's state stands, is a multiple of it."""

    kinds: frozenset[CheckpointKind] = frozenset(CheckpointKind)
    grain_tokens: int = 1


# Its paper's admission: a state where the answer ends and one where the prompt branches off.
MARCONI = ReplayRules(frozenset({CheckpointKind.TURN_END, CheckpointKind.BRANCH}))


def rules_of(policy: str) -> ReplayRules:
    return MARCONI if policy == "marconi" else ReplayRules()
