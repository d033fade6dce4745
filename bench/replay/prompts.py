"""Token ids for the block ids of a trace: equal block ids become equal tokens, different ones
differ.

Owns the recovery of answers. A trace names only the blocks of prompts, so an answer's tokens are
read from the request continuing it. An answer without continuation is unique. Knows nothing of
caches. Deterministic.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.bench.errors import ReplayError

from .trace import Trace

_TOKENS_OF_INT32 = 1 << 31


@dataclass(frozen=True)
class Turn:
    """The whole text of one request, prompt and answer, as block ids and the tokens after them.

    The first `block_tokens_used` tokens are those of `blocks`. The next `unique_tokens` tokens
    appear in no other request.
    """

    blocks: NDArray[np.int64]
    block_tokens_used: int
    unique_tokens: int


class Prompts:
    """The requests of a trace as token arrays. Immutable, so any thread may use it."""

    def __init__(self, trace: Trace) -> None:
        self._block = trace.block_tokens
        continued_by = continuations(trace)
        turns: dict[int, Turn] = {}
        longest: dict[int, int] = {}
        for index in reversed(range(len(trace.requests))):
            request = trace.requests[index]
            total = request.prompt_tokens + request.answer_tokens
            follower = continued_by.get(index)
            if follower is None:
                known = min(request.prompt_tokens, len(request.block_ids) * self._block)
                turns[index] = Turn(request.block_ids, known, total - known)
            else:
                after = turns[follower]
                blocks = after.blocks[: -(-total // self._block)]
                known = min(total, after.block_tokens_used)
                turns[index] = Turn(blocks, known, total - known)
            has_all = follower is not None and not turns[index].unique_tokens
            longest[index] = longest[follower] if has_all and follower is not None else index
        self._turns = turns
        self._longest = longest
        self.recovered_answers = len(continued_by)
        highest = max(int(request.block_ids.max()) for request in trace.requests)
        self._first_unique = (highest + 1) * self._block
        unique = sum(turn.unique_tokens for turn in turns.values())
        if self._first_unique + unique >= _TOKENS_OF_INT32:
            raise ReplayError(
                f"{trace.name}: block ids up to {highest} do not fit int32 tokens; renumber them"
            )
        self._unique_before = np.cumsum(
            [0, *(turns[index].unique_tokens for index in range(len(turns)))]
        )
        self._inside = np.arange(self._block, dtype=np.int32)

    def longest(self, index: int) -> int:
        """Return the index of the last request beginning with all tokens of request `index`.
        Returns `index` if no request continues it."""
        return self._longest[index]

    def tokens(self, index: int) -> NDArray[np.int32]:
        """Return the token ids of a request's prompt and answer, [prompt_tokens + answer_tokens]
        int32."""
        turn = self._turns[index]
        starts = (turn.blocks * self._block).astype(np.int32)
        known = (starts[:, None] + self._inside).reshape(-1)[: turn.block_tokens_used]
        if not turn.unique_tokens:
            return known
        first = self._first_unique + int(self._unique_before[index])
        unique = np.arange(first, first + turn.unique_tokens, dtype=np.int32)
        return np.concatenate([known, unique])


def continuations(trace: Trace) -> dict[int, int]:
    """Return a map from a request's index to the index of the later request continuing it. The
    later prompt contains the prompt and answer of the first."""
    if trace.requests[0].conversation is not None:
        return _by_conversation(trace)
    return _by_last_block(trace)


def _by_conversation(trace: Trace) -> dict[int, int]:
    latest: dict[tuple[int, int], int] = {}
    found: dict[int, int] = {}
    for index, request in enumerate(trace.requests):
        if request.conversation is None:
            continue
        before = latest.get(request.conversation)
        if before is not None and _continues(trace, before, index):
            found[before] = index
        latest[request.conversation] = index
    return found


def _by_last_block(trace: Trace) -> dict[int, int]:
    seen: set[int] = set()
    waiting: dict[int, int] = {}
    found: dict[int, int] = {}
    for index, request in enumerate(trace.requests):
        blocks = request.block_ids[: request.prompt_tokens // trace.block_tokens].tolist()
        for block in blocks:
            before = waiting.get(block)
            if before is not None and _continues(trace, before, index):
                found[before] = index
                del waiting[block]
        if blocks and blocks[-1] not in seen:
            waiting[blocks[-1]] = index
        seen.update(blocks)
    return found


def _continues(trace: Trace, before: int, after: int) -> bool:
    first, second = trace.requests[before], trace.requests[after]
    whole = first.prompt_tokens // trace.block_tokens
    return (
        whole > 0
        and second.prompt_tokens >= first.prompt_tokens + first.answer_tokens
        and np.array_equal(second.block_ids[:whole], first.block_ids[:whole])
    )
