"""States kept in the prefix tree: the checkpoints of a prefill, and the state at a request's end.

Thread rule: the engine loop's.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasuki.engine.messages import FinishReason
from tasuki.engine.request import Active, PlannedCheckpoint, Request
from tasuki.model.vision.prompt_positions import PictureRun
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
    runs: Sequence[PictureRun] = (),
) -> list[PlannedCheckpoint]:
    """Plan a prefill's checkpoints: at the prompt's end, the last message's end, branch points and
    the client's marks.

    Return positions in (cached, tokens), ascending and distinct. All except the ends of the message
    and of pictures are multiples of the page size. branches: positions needed by waiting requests.
    message_end: end of the last message, if the next turn may continue there.

    If there are many marks, the last MAX_MARKS are kept, because they cover most. A mark inside a
    page is moved down to the page's start.

    runs: the prompt's pictures. A state inside a picture needs its rows again to go on. So marks,
    branches and interior places there are moved to the picture's end if they are close to it, else
    to the page boundary before the picture.
    """
    chosen: dict[int, CheckpointKind] = {}

    def keep(position: int, kind: CheckpointKind) -> None:
        if cached < position < tokens:
            chosen.setdefault(position, kind)

    def keep_outside(position: int, kind: CheckpointKind) -> None:
        keep(before_picture(position, runs), kind)

    for position in _prompt_ends(tokens, cached, match, message_end, runs):
        keep(position, CheckpointKind.PROMPT_END)
    if match.branch_tokens is not None and not _is_opening(match, match.branch_tokens):
        # The page not shared whole may still be shared up to the picture's end.
        most = min(match.branch_tokens + PAGE_TOKENS, tokens) - 1
        keep(_beside_picture(match.branch_tokens, most, runs), CheckpointKind.BRANCH)
    for branch in branches:
        keep_outside(branch.position, branch.kind)
    for position in match.interior_tokens:
        keep_outside(position, CheckpointKind.INTERIOR)
    if message_end is not None:
        keep(message_end, CheckpointKind.MESSAGE_END)
    boundaries = {mark // PAGE_TOKENS * PAGE_TOKENS: mark for mark in sorted(marks)}
    for position in sorted(boundaries, reverse=True)[:MAX_MARKS]:
        keep(_beside_picture(position, boundaries[position], runs), CheckpointKind.MARK)
    return [PlannedCheckpoint(position, chosen[position]) for position in sorted(chosen)]


def _prompt_ends(
    tokens: int, cached: int, match: Match, message_end: int | None, runs: Sequence[PictureRun]
) -> set[int]:
    """Return the positions kept as a prompt's end.

    It is the last page boundary usable by a repetition of the prompt (at most tokens - 1). If this
    boundary is behind the last message, in the first page of an answer's opening, the message's end
    is kept instead. If it is inside a picture, one more state is kept before that picture.

    The end is kept behind the last picture instead, so that another question about it needs no
    rows. This is for new chats with at most a page of text behind the picture, or with a message's
    end kept: a repetition of the prompt then loses at most a page.
    """
    last_page = (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
    goes_on = match.checkpoint_kind in (CheckpointKind.TURN_END, CheckpointKind.MESSAGE_END)
    behind = behind_picture(tokens - 1, runs)
    may_move = tokens - behind <= PAGE_TOKENS or behind <= (message_end or 0)
    if behind > cached and may_move and not goes_on:
        return {behind, before_picture(min(last_page, behind), runs)}
    before = max(cached, last_page - PAGE_TOKENS)
    if message_end is not None and before < message_end < last_page:
        return set()
    return {last_page, before_picture(last_page, runs)}


def before_picture(position: int, runs: Sequence[PictureRun]) -> int:
    """Return the position; inside a picture, the last page boundary before its opening token. A
    boundary inside an earlier picture is moved again. runs: the pictures' tokens, ascending."""
    for run in runs[bisect_right(runs, position, key=lambda run: run.start) - 1 :: -1]:
        if not run.start <= position < run.end:
            break
        position = (run.start - 1) // PAGE_TOKENS * PAGE_TOKENS
    return position


def behind_picture(most: int, runs: Sequence[PictureRun]) -> int:
    """Return the position behind the token that closes a picture: the last one at `most` or before;
    0 without one. runs: the pictures' tokens, ascending."""
    closed = bisect_left(runs, most, key=lambda run: run.end)
    return runs[closed - 1].end + 1 if closed else 0


def _beside_picture(position: int, most: int, runs: Sequence[PictureRun]) -> int:
    """Return the position; inside a picture, the position behind its closing token if this is at
    most `most`, else before_picture()."""
    before = before_picture(position, runs)
    behind = behind_picture(most, runs)
    return behind if before < position < behind else before


def _is_opening(match: Match, branch: int) -> bool:
    """Return True if the branch point is in the answer's opening tokens, after the message end the
    prompt resumes from. A checkpoint there would save only a few tokens."""
    is_end = match.checkpoint_kind is CheckpointKind.MESSAGE_END
    return is_end and branch - match.usable_tokens < PAGE_TOKENS


class TokenizerFileError(ValueError):
    """A checkpoint's tokenizer.json cannot be read. To fix this, copy the file again."""


def read_tool_call_ids(checkpoint: Path, opening: str) -> frozenset[int]:
    """Return ids of the tokens opening a tool call in an answer. The set is empty if the folder has
    no tokenizer or its vocabulary has no such token. opening: the token's text. Raises
    TokenizerFileError."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        return frozenset()
    try:
        added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens", [])
        return frozenset(token["id"] for token in added if token["content"] == opening)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TokenizerFileError(
            f"{path} is no tokenizer ({error}): copy the file again"
        ) from error


def turn_hint(output: Sequence[int], reason: FinishReason, tool_call_ids: frozenset[int]) -> str:
    """Return the hint for PrefixCache.insert about the next turn: "unknown" unless the reason is
    STOP. Then it is "tool_call" (soon continued) if the output has a tool call, else
    "end_of_turn"."""
    if reason is not FinishReason.STOP:
        return "unknown"
    return "end_of_turn" if tool_call_ids.isdisjoint(output) else "tool_call"


def keep_state(
    cache: HybridPrefixCache, request: Request, active: Active, hint: str = "unknown"
) -> None:
    """Insert KV and state into the prefix tree at the exact last forwarded token, so the next turn
    resumes there.

    hint: the next turn, guessed from the answer's end (PrefixCache.insert). The last sampled token
    was never forwarded and has no state. A forward in flight may already be one token further. It
    writes the other working slot, and KV not counted by any match. A mixed state is not inserted.
    ENSURES: the allocation may only be released from then on.
    """
    allocation, computed = active.allocation, active.progress.num_computed
    if computed == 0 or request.mixed:
        return
    if allocation.tokens < computed:
        cache.append(allocation, request.output_keys(allocation.tokens, computed))
    if computed == allocation.match.usable_tokens:
        return
    cache.insert(allocation, computed, active.state_slot, CheckpointKind.TURN_END, hint)


def keep_completed(cache: HybridPrefixCache, request: Request, active: Active) -> None:
    """Insert the state of a request ended before its answer's end, if no forward in flight writes
    to it. REQUIRES: none of the request's forwards failed. ENSURES: the allocation may only be
    released from then on."""
    if len(active.slots) > 1 or active.progress.settled:
        keep_state(cache, request, active)
