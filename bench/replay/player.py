"""A player of traces through the C++ prefix tree, using the calls of a serving engine. Checkpoints
of a request are kept by the engine's rules, or by a peer's.

Owns the counts of a replay. Each request is allocated, published and released whole at its arrival.
Memory of concurrent requests is not modelled. No KV is held, only page ids.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.model.costs import PrefillFlops
from tasuki.pycache._cpp_cache import CheckpointKind, ImpossibleRequest, PrefixCache

from .prompts import Prompts
from .tiers import Transfers
from .trace import Trace, TraceRequest


@dataclass(frozen=True)
class ReplayRules:
    """The rules for storing a request's recurrent states. `kinds`: kinds of checkpoint to store.
    `grain_tokens`: shared prompt prefixes and positions of answers' states are multiples of it."""

    kinds: frozenset[CheckpointKind] = frozenset(CheckpointKind)
    grain_tokens: int = 1


def rules_of(policy: str, trace: Trace) -> ReplayRules:
    """Return the rules used with an eviction policy: for marconi the admission of its paper,
    otherwise the engine's."""
    return ends_and_branches(trace) if policy == "marconi" else ReplayRules()


def ends_and_branches(trace: Trace) -> ReplayRules:
    """Return rules storing a state at the answer's end and one at the prompt's branch point, both
    in whole blocks of the trace. Simulators knowing only a trace's blocks store these."""
    kinds = frozenset({CheckpointKind.TURN_END, CheckpointKind.BRANCH})
    return ReplayRules(kinds, trace.block_tokens)


_HINTS = {"tool_use": "tool_call", "end_turn": "end_of_turn"}


@dataclass
class Tally:
    """Sums over a replay. prompt_tokens, flops: tokens and FLOPs of whole prompts. usable_tokens,
    flops_saved: their cached parts. refused: requests without an allocation. causes: lost tokens by
    reason."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    usable_tokens: int = 0
    flops: float = 0.0
    flops_saved: float = 0.0
    causes: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0


class Player:
    """A player of one trace. Borrows the prefix tree. Thread rule: one thread."""

    def __init__(
        self,
        tree: PrefixCache,
        flops: PrefillFlops,
        rules: ReplayRules,
        transfers: Transfers | None = None,
    ) -> None:
        """Set up the player. transfers: copies between the tree's tiers, if it has any."""
        self._tree = tree
        self._transfers = transfers
        self._flops = flops
        self._rules = rules

    def play(self, trace: Trace, prompts: Prompts) -> Tally:
        """Play every request in order, and return the sums. cpu_seconds counts the tree's calls and
        their Python callers."""
        tally = Tally()
        for index, request in enumerate(trace.requests):
            tokens = prompts.tokens(index)
            whole = min(request.prompt_tokens // trace.block_tokens, len(request.block_ids))
            started = time.thread_time()
            self._serve(request, tokens, whole * trace.block_tokens, tally)
            tally.cpu_seconds += time.thread_time() - started
        return tally

    def _serve(
        self, request: TraceRequest, tokens: NDArray[np.int32], known: int, tally: Tally
    ) -> None:
        """Serve one request, and add it to the tally. `known`: prompt tokens in whole blocks. A
        trace does not show the branch point of two prompts within a last partial block. So the
        checkpoint of the prompt's end is stored before this block."""
        tree = self._tree
        grain = self._rules.grain_tokens
        shared = request.prompt_tokens // grain * grain
        prompt = tokens[: min(request.prompt_tokens, shared + 1)]
        tally.requests += 1
        tally.prompt_tokens += request.prompt_tokens
        tally.flops += self._flops.of(request.prompt_tokens)
        tree.advance_to(request.timestamp_ms)
        transfers = self._transfers
        try:
            if transfers is None:
                allocation = tree.allocate(prompt, capacity_tokens=len(tokens), working_slots=1)
            else:
                allocation = transfers.allocate(prompt, len(tokens), request.timestamp_ms)
        except ImpossibleRequest:
            allocation = None
        if allocation is None:
            tally.refused += 1
            _add(tally.causes, {"refused": request.prompt_tokens})
            return
        match = allocation.match
        tally.usable_tokens += match.usable_tokens
        tally.flops_saved += self._flops.of(match.usable_tokens)
        _add(tally.causes, match.miss_reasons.as_dict())
        if match.checkpoint_kind is not None:
            _add(tally.sources, {match.checkpoint_kind.value: match.usable_tokens})
        end = min(known + 1, len(prompt))
        for planned in plan_checkpoints(end, allocation.cached_tokens, match, ()):
            if planned.kind not in self._rules.kinds:
                continue
            slot = tree.take_checkpoint_slot(allocation)
            if slot is not None:
                tree.insert(allocation, planned.position, slot, planned.kind)
        forwarded = max(len(tokens) - 1, len(prompt)) // grain * grain
        tree.append(allocation, tokens[len(prompt) :])
        hint = _HINTS.get(request.stop, "unknown")
        if forwarded > match.usable_tokens:
            tree.insert(
                allocation, forwarded, allocation.working_slots[0], CheckpointKind.TURN_END, hint
            )
        tree.release(allocation)
        if transfers is not None:
            transfers.write()


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value
