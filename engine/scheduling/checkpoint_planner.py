"""Where a prefill leaves checkpoints: at the prompt's end, at its last message's end, at a branch
point, at the client's marks."""

from collections.abc import Iterable

from tasuki.engine.request import PlannedCheckpoint
from tasuki.pycache._cpp_cache import CheckpointKind, Match
from tasuki.pycache.layout import PAGE_TOKENS

MAX_MARKS = 4


def plan_checkpoints(
    tokens: int,
    cached: int,
    match: Match,
    marks: Iterable[int],
    branches: Iterable[PlannedCheckpoint] = (),
    message_end: int | None = None,
) -> list[PlannedCheckpoint]:
    """Positions in (cached, tokens), ascending, none twice, all but the message's end multiples of
    a page. branches: where others wait to branch off. message_end: where the last message ends, if
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
