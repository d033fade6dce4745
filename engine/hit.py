"""A match of the tree as the breakdown that clients are told."""

from ..pycache._cpp_cache import Match
from .losses import LostState
from .messages import HitBreakdown


def breakdown(match: Match, lost: LostState | None) -> HitBreakdown:
    kind = match.checkpoint_kind
    return HitBreakdown(
        prompt_tokens=match.prompt_tokens,
        kv_tokens=match.kv_tokens,
        usable_tokens=match.usable_tokens,
        causes=match.causes.as_dict(),
        checkpoint_source=None if kind is None else kind.name.lower(),
        lost=lost,
    )
