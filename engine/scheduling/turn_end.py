"""What a request leaves in the tree when it stops running, and what its last tokens show of the
next turn: a tool call is answered soon. Knows what the checkpoint's tokenizer calls a tool call, no
conversations and no templates."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasuki.engine.messages import FinishReason
from tasuki.engine.request import Active, Request
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.prefix_cache import HybridPrefixCache

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
    """Publish KV and state at the exact last forwarded token, so that the next turn resumes there.

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
