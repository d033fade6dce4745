"""States kept in the tree: where a prefill leaves them, and what a request leaves at its end.

Thread rule: the engine loop's.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tasuki.engine.messages import FinishReason
from tasuki.engine.request import Active, PlannedCheckpoint, Request
from tasuki.pycache._cpp_cache import CheckpointKind, Match
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

MAX_MARKS = 4


def plan_checkpoints(
    tokens: int,
    cached: int,
    match: Match,
    marks: Iterable[int],
    branches: Iterable[PlannedCheckpoint] = (),
    message_end: int | None = None,
) -> list[PlannedCheckpoint]:
    """Where a prefill leaves checkpoints: at the prompt's end, at its last message's end, at a
    branch point, at the client's marks.

    Positions in (cached, tokens), ascending, none twice, all but the message's end multiples of a
    page. branches: where others wait to branch off. message_end: where the last message ends, if
    the next turn may go on from there.

    The prompt's end is kept at the last page boundary that a repeat of the same prompt may use (at
    most tokens - 1). Where that is inside an answer's opening, the message's end serves in its
    place. Of many marks the last ones are kept: they cover most. A mark inside a page is moved down
    to its boundary.
    """
    chosen: dict[int, CheckpointKind] = {}

    def keep(position: int, kind: CheckpointKind) -> None:
        if cached < position < tokens:
            chosen.setdefault(position, kind)

    last_page = (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
    before = max(cached, last_page - PAGE_TOKENS)
    if message_end is None or not before < message_end < last_page:
        keep(last_page, CheckpointKind.PROMPT_END)
    if match.branch_tokens is not None and not _is_opening(match, match.branch_tokens):
        keep(match.branch_tokens, CheckpointKind.BRANCH)
    for branch in branches:
        keep(branch.position, branch.kind)
    for position in match.interior_tokens:
        keep(position, CheckpointKind.INTERIOR)
    if message_end is not None:
        keep(message_end, CheckpointKind.MESSAGE_END)
    boundaries = {mark // PAGE_TOKENS * PAGE_TOKENS for mark in marks}
    for position in sorted(boundaries, reverse=True)[:MAX_MARKS]:
        keep(position, CheckpointKind.MARK)
    return [PlannedCheckpoint(position, chosen[position]) for position in sorted(chosen)]


def _is_opening(match: Match, branch: int) -> bool:
    """Whether the branch is inside the opening of the answer to the message that the prompt goes on
    from: it saves a few tokens."""
    is_end = match.checkpoint_kind is CheckpointKind.MESSAGE_END
    return is_end and branch - match.usable_tokens < PAGE_TOKENS


_TOOL_CALL = "<tool_call>"


class TokenizerFileError(ValueError):
    """A checkpoint's tokenizer.json cannot be read. Copy the file again."""


def read_tool_call_ids(checkpoint: Path) -> frozenset[int]:
    """Ids of the tokens that open a tool call in an answer; none where the folder has no tokenizer
    or its vocabulary has no such token. Raises TokenizerFileError."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        return frozenset()
    try:
        added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens", [])
        return frozenset(token["id"] for token in added if token["content"] == _TOOL_CALL)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TokenizerFileError(
            f"{path} is no tokenizer ({error}): copy the file again"
        ) from error


def turn_hint(output: Sequence[int], reason: FinishReason, tool_call_ids: frozenset[int]) -> str:
    """As PrefixCache.insert takes it: an answer that calls a tool is soon continued."""
    if reason is not FinishReason.STOP:
        return "unknown"
    return "end_of_turn" if tool_call_ids.isdisjoint(output) else "tool_call"


def keep_state(
    cache: HybridPrefixCache, request: Request, active: Active, hint: str = "unknown"
) -> None:
    """What a request leaves in the tree when it stops running, and what its last tokens show of the
    next turn: a tool call is answered soon. Knows what the checkpoint's tokenizer calls a tool
    call, no conversations and no templates.

    Publish KV and state at the exact last forwarded token, so that the next turn resumes there.

    `hint` is what the end shows of the next turn (PrefixCache.insert). The last sampled token was
    never forwarded and has no state. A forward in flight may already be one token further: it
    writes the other working slot, and KV that no match counts. ENSURES: only release may follow.
    """
    allocation, computed = active.allocation, active.progress.num_computed
    if computed == 0:
        return
    if allocation.tokens < computed:
        missing = request.token_slice(allocation.tokens, computed)
        cache.append(allocation, np.asarray(missing, dtype=np.int32))
    if computed == allocation.match.usable_tokens:
        return
    cache.insert(allocation, computed, active.state_slot, CheckpointKind.TURN_END, hint)


def keep_landed(cache: HybridPrefixCache, request: Request, active: Active) -> None:
    """The same for a request that ends before its answer does. REQUIRES: no forward of it failed.
    ENSURES: only release may follow."""
    if len(active.slots) > 1 or active.progress.settled:
        keep_state(cache, request, active)
