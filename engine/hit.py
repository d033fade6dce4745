"""A match of the tree as the breakdown that clients are told."""

from ..pycache._cpp_cache import CheckpointKind, Match, PageMatch
from .losses import LostState
from .messages import HitBreakdown


def breakdown(match: Match, lost: LostState | None) -> HitBreakdown:
    pages = _counts(match.prompt_tokens, match.in_pages, None, None)
    return _counts(match.prompt_tokens, match, lost, pages)


def _counts(
    prompt_tokens: int,
    match: Match | PageMatch,
    lost: LostState | None,
    in_pages: HitBreakdown | None,
) -> HitBreakdown:
    return HitBreakdown(
        prompt_tokens=prompt_tokens,
        kv_tokens=match.kv_tokens,
        usable_tokens=match.usable_tokens,
        causes=match.causes.as_dict(),
        checkpoint_source=_name(match.checkpoint_kind),
        lost=lost,
        in_pages=in_pages,
    )


def _name(kind: CheckpointKind | None) -> str | None:
    return None if kind is None else kind.name.lower()
