"""States that this node holds and another one reads: pinned where the arena has them, loaded first
where memory below it has.

Owns nothing that it gave out: who holds a state lets it go. Thread rule: the engine loop's.
Invariant: what is sent is the state behind exactly the tokens that were named, under their salt,
once every page of it was acknowledged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.engine.tiers.lower_tiers import LoadEnd
from tasuki.pycache._cpp_cache import Allocation, ImpossibleRequest
from tasuki.pycache.layout import PAGE_TOKENS

from .base import HandoverContext


@dataclass(eq=False)
class HeldState:
    """pages: of its whole path; slot: of the state. None while it is being loaded."""

    allocation: Allocation
    sent: tuple[tuple[int, ...], int] | None


class HeldStates:
    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._tiers = context.tiers

    def hold(self, tokens: Tokens, salt: bytes, loaded: Callable[[bool], None]) -> HeldState | None:
        """The state behind these; None where it is nowhere here, or nothing is to be had from below
        now. loaded: called once of a state that is loaded, unless it is let go before: whether it
        landed, and is gone where it did not."""
        # A match ends before a prompt's last token.
        prompt = np.append(tokens, tokens[-1:])
        return self._pinned(prompt, salt) or self._loading(prompt, salt, loaded)

    def _pinned(self, prompt: Tokens, salt: bytes) -> HeldState | None:
        allocation = self._cache.allocate_to_send(prompt, salt=salt)
        if allocation is None:
            return None
        if allocation.cached_tokens != len(prompt) - 1:
            self._cache.release(allocation)
            return None
        pages: list[int] = allocation.pages.tolist()
        if allocation.source_page is not None:
            pages.append(allocation.source_page)
        assert len(pages) == -(-allocation.cached_tokens // PAGE_TOKENS)
        assert allocation.cow_source_slot is not None
        return HeldState(allocation, (tuple(pages), allocation.cow_source_slot))

    def _loading(
        self, prompt: Tokens, salt: bytes, loaded: Callable[[bool], None]
    ) -> HeldState | None:
        tiers, tokens = self._tiers, len(prompt) - 1
        if tiers is None:
            return None
        match = self._cache.match(prompt, salt, None)
        if all(state.boundary != tokens for state in match.stored):
            return None
        try:
            allocation = self._cache.allocate_or_load(
                prompt,
                salt=salt,
                capacity_tokens=len(prompt),
                working_slots=1,
                load_wait=tiers.load_wait,
            )
        except ImpossibleRequest:
            # A disk outlives a larger arena.
            return None
        if allocation is None:
            return None
        if allocation.load is None:
            self._cache.release(allocation)
            return None
        is_wanted = allocation.load.boundary == tokens
        held = HeldState(allocation, None)
        tiers.load(allocation, lambda end: self._load_ended(held, end, loaded))
        if is_wanted:
            return held
        # Less of it is cheaper to load, and the rest to compute: nobody computes here.
        tiers.give_up(allocation)
        return None

    def _load_ended(self, held: HeldState, end: LoadEnd, loaded: Callable[[bool], None]) -> None:
        allocation = held.allocation
        if end is LoadEnd.LANDED:
            count = -(-allocation.cached_tokens // PAGE_TOKENS)
            held.sent = tuple(allocation.pages[:count].tolist()), allocation.working_slots[0]
        elif end is LoadEnd.FAILED:
            self._cache.release(allocation)
        loaded(end is LoadEnd.LANDED)

    def let_go(self, held: HeldState) -> None:
        """REQUIRES: nobody reads it any more."""
        if held.sent is None:
            assert self._tiers is not None
            self._tiers.give_up(held.allocation)
        else:
            self._cache.release(held.allocation)
