"""The expected answers of PrefixCache in plain Python: prefixes as tuples, compared token by token.

Owns the truth about published prefixes, their ids, and the ids held by every live allocation. It
does not know the eviction order, a matter of policy. It learns evictions by asking for matches. It
rejects evictions that must never happen: pinned items, KV above a state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import PAGE_TOKENS, Allocation, Match, PrefixCache

Prefix = tuple[int, ...]
Place = tuple[bytes, Prefix]  # salt, tokens from the start
STRANGER = 99  # a token no prompt holds
EVICTED_PAGE = -1  # no page of any arena


def array(tokens: Iterable[int]) -> NDArray[np.int32]:
    return np.array(list(tokens), dtype=np.int32)


def whole(tokens: int) -> int:
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def common(left: Prefix, right: Prefix) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


@dataclass
class Held:
    """A live allocation. `standing`: tokens of its path kept for it by the tree."""

    allocation: Allocation
    salt: bytes
    tokens: Prefix
    pages: list[int]
    own: list[bool]
    working: list[int]
    standing: int
    pinned_states: list[Place]
    destinations: list[int] = field(default_factory=list)
    granted: bool = False
    closed: bool = False
    cursor: int | None = None


@dataclass
class Oracle:
    """kv and tails: page id by place (whole pages, and partial ones). states: slot id by place."""

    kv: dict[Place, int] = field(default_factory=dict)
    tails: dict[Place, int] = field(default_factory=dict)
    states: dict[Place, int] = field(default_factory=dict)
    evicted_kv: set[Place] = field(default_factory=set)
    evicted_states: set[Place] = field(default_factory=set)
    allocations: list[Held] = field(default_factory=list)
    quarantined: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def pages_by_owner(self) -> dict[str, list[int]]:
        owned: dict[str, list[int]] = {
            "tree": [*self.kv.values(), *self.tails.values()],
            "working": [],
            "granted": [],
            "quarantined": [page for pages, _ in self.quarantined.values() for page in pages],
        }
        for held in self.allocations:
            own = [page for page, mine in zip(held.pages, held.own, strict=True) if mine]
            owned["granted" if held.granted else "working"] += own
        return owned

    def slots_by_owner(self) -> dict[str, list[int]]:
        owned: dict[str, list[int]] = {
            "tree": list(self.states.values()),
            "working": [],
            "granted": [],
            "quarantined": [slot for _, slots in self.quarantined.values() for slot in slots],
        }
        for held in self.allocations:
            owned["granted" if held.granted else "working"] += held.working
            owned["working"] += held.destinations
        return owned

    def depth(self, salt: bytes, prompt: Prefix, ghosts: bool) -> int:
        """Return the tokens in whole pages of the prompt that are stored, or (ghosts) stored now or
        earlier."""
        end = 0
        while end + PAGE_TOKENS <= len(prompt):
            place = (salt, prompt[: end + PAGE_TOKENS])
            if place not in self.kv and not (ghosts and place in self.evicted_kv):
                break
            end += PAGE_TOKENS
        return end

    def usable(self, salt: bytes, prompt: Prefix, grain: int = 1) -> int:
        ends = (len(p) for s, p in self.states if s == salt and prompt[: len(p)] == p)
        return max((end for end in ends if end < len(prompt) and end % grain == 0), default=0)

    def kv_tokens(self, salt: bytes, prompt: Prefix) -> int:
        tails = (len(p) for s, p in self.tails if s == salt and prompt[: len(p)] == p)
        return max([self.depth(salt, prompt, ghosts=False), *tails])

    def causes(self, salt: bytes, prompt: Prefix, grain: int = 1) -> dict[str, int]:
        """Return the first valid cause of each token from usable on. grain: matches count down to a
        multiple of it, and states only at multiples."""

        def floored(end: int) -> int:
            return end // grain * grain

        last = len(prompt) - 1
        pages = self.depth(salt, prompt, ghosts=False)
        stood = self.depth(salt, prompt, ghosts=True)
        kv = floored(self.kv_tokens(salt, prompt))
        gone_states = [
            len(p)
            for s, p in self.evicted_states
            if s == salt and prompt[: len(p)] == p and len(p) % grain == 0
        ]
        evicted_state = max((end for end in gone_states if end <= last), default=0)
        evicted_kv = max([stood, *(end for end in gone_states if end % PAGE_TOKENS)])
        # A partial page; whole ones are in kv.
        partial = (
            0
            if grain > 1
            else max(
                (
                    common(p, prompt)
                    for s, p in [*self.kv, *self.tails]
                    if s == salt and whole(len(p) - 1) == pages and p[:pages] == prompt[:pages]
                ),
                default=0,
            )
        )
        flight = floored(
            max(
                (common(held.tokens, prompt) for held in self.allocations if held.salt == salt),
                default=0,
            )
        )
        state_at_end = (salt, prompt) in self.states and len(prompt) % grain == 0
        named = dict.fromkeys(
            (
                "new",
                "never_checkpointed",
                "checkpoint_evicted",
                "kv_evicted",
                "alignment",
                "in_flight",
            ),
            0,
        )
        for token in range(self.usable(salt, prompt, grain), len(prompt)):
            if token < min(evicted_state, kv):
                named["checkpoint_evicted"] += 1
            elif token < min(pages, whole(last)) and not state_at_end:
                named["never_checkpointed"] += 1
            elif token < max(kv, partial):
                named["alignment"] += 1
            elif token < flight:
                named["in_flight"] += 1
            elif token < evicted_kv:
                named["kv_evicted"] += 1
            else:
                named["new"] += 1
        return named

    def check_match(self, match: Match, salt: bytes, prompt: Prefix, remembers: bool) -> None:
        usable = self.usable(salt, prompt)
        assert match.prompt_tokens == len(prompt)
        assert match.kv_tokens == self.kv_tokens(salt, prompt)
        assert match.usable_tokens == usable
        assert (match.checkpoint_kind is None) == (usable == 0)
        branch = min(self.depth(salt, prompt, ghosts=False), whole(len(prompt) - 1))
        assert match.branch_tokens == (branch if branch > usable else None)
        told = match.miss_reasons.as_dict()
        assert match.usable_tokens + sum(told.values()) == len(prompt)
        pages = match.in_pages
        told_in_pages = pages.miss_reasons.as_dict()
        assert pages.kv_tokens == self.depth(salt, prompt, ghosts=False)
        assert pages.usable_tokens == self.usable(salt, prompt, PAGE_TOKENS)
        assert pages.usable_tokens + sum(told_in_pages.values()) == len(prompt)
        assert (pages.checkpoint_kind is None) == (pages.usable_tokens == 0)
        if remembers:
            assert told == self.causes(salt, prompt)
            assert told_in_pages == self.causes(salt, prompt, PAGE_TOKENS)

    def follow_moves(self, tree: PrefixCache) -> None:
        """Follow pages of the tree to their new ids; pages of a live allocation never move.

        A target may be the id of a page evicted in the same call and not yet found by learn(). Then
        the target's place has no page.
        """
        for source, target in tree.drain_moves():
            held = {page for held in self.allocations for page in held.pages}
            assert source not in held, "a page under an allocation was moved"
            assert target not in held, "a page was moved onto one under an allocation"
            for pages in (self.kv, self.tails):
                for place in [place for place, page in pages.items() if page == target]:
                    pages[place] = EVICTED_PAGE
            homes = [
                (pages, place)
                for pages in (self.kv, self.tails)
                for place, page in pages.items()
                if page == source
            ]
            assert len(homes) == 1, "a page moved that the tree does not hold once"
            for pages, place in homes:
                pages[place] = target

    def learn(self, tree: PrefixCache) -> int:
        """Ask for all items still stored and return the number of evicted ones. Reject evictions
        that must never happen."""
        self.follow_moves(tree)
        lost_states = []
        for place in self.states:
            salt, prefix = place
            answer = tree.match(array((*prefix, STRANGER)), salt)
            assert answer.usable_tokens <= len(prefix)
            if answer.usable_tokens < len(prefix):
                lost_states.append(place)
        lost_kv = [
            (salt, prefix)
            for salt, prefix in self.kv
            if tree.match(array((*prefix, STRANGER)), salt).kv_tokens < len(prefix)
        ]
        for held in self.allocations:
            for salt, prefix in lost_kv:
                pinned = held.salt == salt and held.tokens[: held.standing][: len(prefix)] == prefix
                assert not pinned, "KV under an allocation was evicted"
            assert not set(held.pinned_states) & set(lost_states), "a pinned state was evicted"
        for place in lost_states:
            del self.states[place]
            self.tails.pop(place, None)
            self.evicted_states.add(place)
        for place in lost_kv:
            del self.kv[place]
            self.evicted_kv.add(place)
        for salt, prefix in [*self.kv, *self.states]:
            for end in range(PAGE_TOKENS, len(prefix), PAGE_TOKENS):
                assert (salt, prefix[:end]) in self.kv, "KV was evicted below what needs it"
        return len(lost_states) + len(lost_kv)

    def forget(self) -> None:
        """Forget all evicted items, as flush() does."""
        self.evicted_kv.clear()
        self.evicted_states.clear()

    def allocated(self, allocation: Allocation, salt: bytes, prompt: Prefix, cached: int) -> Held:
        """Record a new allocation with its first `cached` tokens from the tree."""
        shared = cached // PAGE_TOKENS
        pages = allocation.pages.tolist()
        assert allocation.cached_tokens == cached
        assert allocation.shared_pages == shared
        for page, end in zip(
            pages, range(PAGE_TOKENS, whole(cached) + 1, PAGE_TOKENS), strict=False
        ):
            assert page == self.kv[salt, prompt[:end]]
        own = [place >= shared for place in range(len(pages))]
        held = Held(
            allocation, salt, prompt, pages, own, allocation.working_slots, whole(cached), []
        )
        source = (salt, prompt[:cached])
        if allocation.cow_source_slot is not None:
            assert allocation.cow_source_slot == self.states[source]
            held.pinned_states.append(source)
        if allocation.tail_copy is not None:
            assert allocation.tail_copy == (self.tails[source], pages[shared])
        assert (allocation.tail_copy is not None) == (source in self.tails and cached > 0)
        self.allocations.append(held)
        return held

    def published(self, held: Held, boundary: int, slot: int | None) -> None:
        for end in range(PAGE_TOKENS, boundary + 1, PAGE_TOKENS):
            place = (held.salt, held.tokens[:end])
            index = end // PAGE_TOKENS - 1
            if place not in self.kv:
                assert held.own[index]
                self.kv[place] = held.pages[index]
                held.own[index] = False
                self.evicted_kv.discard(place)
        held.standing = max(held.standing, whole(boundary))
        if slot is None:
            return
        self._gave(held, slot)
        place = (held.salt, held.tokens[:boundary])
        held.closed = boundary % PAGE_TOKENS != 0
        if place in self.states:
            return
        self.states[place] = slot
        self.evicted_states.discard(place)
        if held.closed:
            index = boundary // PAGE_TOKENS
            self.tails[place] = held.pages[index]
            held.own[index] = False
            held.pinned_states.append(place)

    def published_midway(
        self, held: Held, boundary: int, slot: int, copied: tuple[int, int] | None
    ) -> None:
        """Record a state inside a continuing allocation. copied: the result of insert_midway()."""
        if boundary % PAGE_TOKENS == 0:
            self.published(held, boundary, slot)
            return
        self.published(held, whole(boundary), None)
        self._gave(held, slot)
        if copied is None:
            # It exists already, or there was no page for it.
            return
        source, own = copied
        assert source == held.pages[boundary // PAGE_TOKENS] and own not in held.pages
        place = (held.salt, held.tokens[:boundary])
        self.states[place], self.tails[place] = slot, own
        self.evicted_states.discard(place)

    def _gave(self, held: Held, slot: int) -> None:
        for slots in (held.working, held.destinations):
            if slot in slots:
                slots.remove(slot)
