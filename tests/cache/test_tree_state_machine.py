"""Random lives of the real tree over tiny arenas, each step compared with the oracle."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tasuki.client.cache_events import PrefixIndex
from tasuki.pycache._cpp_cache import (
    PAGE_TOKENS,
    CheckpointKind,
    ImpossibleRequest,
    PrefixCache,
    TreeConfig,
    prefix_hashes,
)
from tests.cache.tree_oracle import Held, Oracle, Prefix, array, whole

# The first two share half a page, so prompts can part inside a page.
PAGES = ([1] * PAGE_TOKENS, [1] * 32 + [2] * 32, [3] * PAGE_TOKENS)
SALTS = st.sampled_from([b"", b"", b"tenant"])
EXAMPLES = int(os.environ.get("TASUKI_TREE_EXAMPLES", "120"))
MORE_EXAMPLES = 5 * EXAMPLES


@st.composite
def prompts(draw: st.DrawFn, least: int = 1, pages: int = 4) -> Prefix:
    contents = draw(st.lists(st.sampled_from(PAGES), max_size=pages))
    partial = draw(st.sampled_from(PAGES))[: draw(st.sampled_from([0, 0, 1, 32, 33, 63]))]
    tokens = tuple(token for page in [*contents, partial] for token in page)
    return tokens if len(tokens) >= least else tuple(PAGES[0])


class TreeMachine(RuleBasedStateMachine):
    @initialize(
        slabs=st.integers(4, 12),
        ghosts=st.sampled_from([10_000, 10_000, 3, 0]),
        policy=st.sampled_from(["lru", "value", "auto"]),
        patience=st.sampled_from([3, 1_000]),
    )
    def start(self, slabs: int, ghosts: int, policy: str, patience: int) -> None:
        config = TreeConfig(
            slabs=slabs,
            blocks_per_slab=5,
            pages_per_slab=3,
            max_ghost_nodes=ghosts,
            policy=policy,
            attention_cost=1e-3,
        )
        self.tree = PrefixCache(config)
        self.oracle = Oracle()
        self.slabs = slabs
        self.remembers = ghosts == 10_000
        self.cursors: dict[int, tuple[bytes, Prefix]] = {}
        self.requests = 0
        self.watches: dict[int, tuple[str, PrefixIndex]] = {}
        self.patience = patience

    def able(self, wanted: str) -> list[Held]:
        tests = {
            "writing": lambda held: not held.granted and not held.closed,
            "releasable": lambda held: not held.granted,
            "granted": lambda held: held.granted,
        }
        return [held for held in self.oracle.allocations if tests[wanted](held)]

    def pick(self, data: st.DataObject, wanted: str) -> Held:
        return data.draw(st.sampled_from(self.able(wanted)))

    def refused(self) -> None:
        """Check a failed allocation: others hold the memory, and nothing was evicted for it."""
        assert self.oracle.allocations or self.oracle.quarantined
        assert self.oracle.learn(self.tree) == 0

    @precondition(lambda self: len(self.oracle.allocations) < 3)
    @rule(
        data=st.data(),
        salt=SALTS,
        prompt=prompts(),
        more=st.integers(0, 200),
        working=st.integers(0, 2),
    )
    def allocate(
        self, data: st.DataObject, salt: bytes, prompt: Prefix, more: int, working: int
    ) -> None:
        self.admit(data, salt, prompt, more, working)

    @rule(data=st.data(), salt=SALTS, prompt=prompts(), tail=st.booleans())
    def turn(self, data: st.DataObject, salt: bytes, prompt: Prefix, tail: bool) -> None:
        """Run a whole request: allocation, a state at the last whole page, one at the end,
        release."""
        held = self.admit(data, salt, prompt, 0, 1)
        if held is None:
            return
        boundary = whole(len(held.tokens) - 1)
        if boundary > held.allocation.cached_tokens:
            slot = self.take_slot(held)
            self.publish_at(held, boundary, slot)
        if tail or len(held.tokens) % PAGE_TOKENS == 0:
            self.publish_at(held, len(held.tokens), held.working[0])
        self.tree.release(held.allocation)
        self.oracle.allocations.remove(held)

    def admit(
        self, data: st.DataObject, salt: bytes, prompt: Prefix, more: int, working: int
    ) -> Held | None:
        cursor = None
        if self.cursors and data.draw(st.booleans()):
            cursor = data.draw(st.sampled_from(sorted(self.cursors)))
            salt, known = self.cursors[cursor]
            prompt = known + prompt
        self.oracle.check_match(
            self.tree.match(array(prompt), salt, cursor), salt, prompt, self.remembers
        )
        usable = self.oracle.usable(salt, prompt)
        capacity = len(prompt) + more
        try:
            allocation = self.tree.allocate(
                array(prompt),
                salt=salt,
                capacity_tokens=capacity,
                working_slots=working,
                cursor=cursor,
            )
        except ImpossibleRequest:
            assert -(-capacity // (3 * PAGE_TOKENS)) + working > self.slabs
            return None
        if allocation is None:
            self.refused()
            return None
        self.requests += 1
        self.oracle.follow_moves(self.tree)
        assert allocation.cached_tokens in (0, usable)
        held = self.oracle.allocated(allocation, salt, prompt, allocation.cached_tokens)
        if allocation.cached_tokens < usable:
            # Its own match would otherwise have blocked it for ever.
            assert allocation.match.miss_reasons.checkpoint_evicted >= usable
        else:
            assert allocation.match.usable_tokens == usable
        assert allocation.capacity_tokens == -(-capacity // PAGE_TOKENS) * PAGE_TOKENS
        self.oracle.learn(self.tree)
        held.cursor = cursor
        return held

    @precondition(lambda self: len(self.oracle.allocations) < 3)
    @rule(salt=SALTS, prompt=prompts(), more=st.integers(0, 200), working=st.integers(0, 2))
    def allocate_to_receive(self, salt: bytes, prompt: Prefix, more: int, working: int) -> None:
        cached = min(self.oracle.depth(salt, prompt, ghosts=False), whole(len(prompt) - 1))
        try:
            allocation = self.tree.allocate_to_receive(
                array(prompt), salt=salt, capacity_tokens=len(prompt) + more, working_slots=working
            )
        except ImpossibleRequest:
            assert -(-(len(prompt) + more) // (3 * PAGE_TOKENS)) + working > self.slabs
            return
        if allocation is None:
            self.refused()
            return
        self.oracle.follow_moves(self.tree)
        assert allocation.cached_tokens in (0, cached)
        assert allocation.cow_source_slot is None and allocation.tail_copy is None
        self.oracle.allocations.append(
            Held(
                allocation,
                salt,
                prompt,
                allocation.pages.tolist(),
                [place >= allocation.shared_pages for place in range(len(allocation.pages))],
                allocation.working_slots,
                allocation.cached_tokens,
                [],
            )
        )
        self.oracle.learn(self.tree)

    @precondition(lambda self: self.able("writing"))
    @rule(data=st.data(), more=st.integers(1, 200))
    def extend(self, data: st.DataObject, more: int) -> None:
        held = self.pick(data, "writing")
        capacity = held.allocation.capacity_tokens + more
        try:
            extended = self.tree.extend(held.allocation, capacity)
        except ImpossibleRequest:
            return
        if not extended:
            assert self.oracle.learn(self.tree) == 0
            return
        pages = held.allocation.pages.tolist()
        assert pages[: len(held.pages)] == held.pages
        held.own += [True] * (len(pages) - len(held.pages))
        held.pages = pages
        self.oracle.learn(self.tree)

    @precondition(lambda self: self.able("writing"))
    @rule(data=st.data(), tokens=prompts(pages=1))
    def append(self, data: st.DataObject, tokens: Prefix) -> None:
        held = self.pick(data, "writing")
        transfer_id = held.allocation.capacity_tokens - len(held.tokens)
        tokens = tokens[: max(transfer_id, 0)]
        self.tree.append(held.allocation, array(tokens))
        held.tokens += tokens
        assert held.allocation.tokens == len(held.tokens)

    @precondition(lambda self: self.able("writing"))
    @rule(data=st.data())
    def take_checkpoint_slot(self, data: st.DataObject) -> None:
        self.take_slot(self.pick(data, "writing"))

    def take_slot(self, held: Held) -> int | None:
        slot = self.tree.take_checkpoint_slot(held.allocation)
        gone = self.oracle.learn(self.tree)
        if slot is None:
            assert gone == 0
            return None
        held.destinations.append(slot)
        return slot

    @precondition(lambda self: self.able("writing"))
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        held = self.pick(data, "writing")
        slot = None
        slots = held.working + held.destinations
        if slots and data.draw(st.booleans(), label="with a state"):
            slot = data.draw(st.sampled_from(slots))
        most = len(held.tokens)
        boundary = data.draw(st.sampled_from([most, most, max(1, most - PAGE_TOKENS), PAGE_TOKENS]))
        computed = whole(held.allocation.cached_tokens)
        if slot is None or boundary > most or whole(boundary) < computed:
            boundary = whole(min(boundary, most))
        if boundary % PAGE_TOKENS and not held.own[boundary // PAGE_TOKENS]:
            boundary = whole(boundary)
        if boundary > 0:
            self.publish_at(held, boundary, slot)

    @precondition(lambda self: self.able("writing"))
    @rule(
        data=st.data(),
        kind=st.sampled_from([CheckpointKind.MESSAGE_END, CheckpointKind.MARK]),
        cut=st.sampled_from([0, 1, 5, 32, 64, 70]),
    )
    def insert_midway(self, data: st.DataObject, kind: CheckpointKind, cut: int) -> None:
        held = self.pick(data, "writing")
        boundary = len(held.tokens) - cut
        slots = held.working + held.destinations
        if not slots or boundary < 1 or boundary > held.allocation.capacity_tokens:
            return
        if whole(boundary) < whole(held.allocation.cached_tokens):
            return
        if boundary % PAGE_TOKENS and not held.own[boundary // PAGE_TOKENS]:
            return
        slot = data.draw(st.sampled_from(slots))
        copied = self.tree.insert_midway(held.allocation, boundary, slot, kind)
        self.oracle.learn(self.tree)
        self.oracle.published_midway(held, boundary, slot, copied)
        cursor = held.cursor
        if cursor in self.cursors:
            self.cursors[cursor] = (held.salt, held.tokens[: held.standing])

    def publish_at(self, held: Held, boundary: int, slot: int | None) -> None:
        self.tree.insert(held.allocation, boundary, slot, CheckpointKind.TURN_END)
        self.oracle.published(held, boundary, slot)
        cursor = held.cursor
        if cursor in self.cursors:
            self.cursors[cursor] = (held.salt, held.tokens[: held.standing])

    @precondition(lambda self: self.able("releasable"))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.pick(data, "releasable")
        self.tree.release(held.allocation)
        self.oracle.allocations.remove(held)
        # The end of a replaced message is gone.
        self.oracle.learn(self.tree)

    @precondition(lambda self: self.able("writing"))
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        held = self.pick(data, "writing")
        self.tree.grant(held.allocation)
        held.granted = True

    @precondition(lambda self: self.able("granted"))
    @rule(data=st.data())
    def accept_received(self, data: st.DataObject) -> None:
        held = self.pick(data, "granted")
        self.tree.accept_received(held.allocation)
        held.granted = False

    @precondition(lambda self: self.able("granted"))
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        held = self.pick(data, "granted")
        quarantine = self.tree.quarantine(held.allocation)
        own = [page for page, mine in zip(held.pages, held.own, strict=True) if mine]
        self.oracle.allocations.remove(held)
        self.oracle.quarantined[quarantine] = (own, held.working + held.destinations)
        self.oracle.learn(self.tree)

    @precondition(lambda self: self.oracle.quarantined)
    @rule()
    def free_quarantined(self) -> None:
        quarantine = min(self.oracle.quarantined)
        self.tree.free_quarantined(quarantine)
        del self.oracle.quarantined[quarantine]

    @rule(salt=SALTS)
    def open_cursor(self, salt: bytes) -> None:
        self.cursors[self.tree.open_cursor(salt)] = (salt, ())

    @precondition(lambda self: self.cursors)
    @rule()
    def fork_cursor(self) -> None:
        parent = max(self.cursors)
        self.cursors[self.tree.fork_cursor(parent)] = self.cursors[parent]

    @precondition(lambda self: len(self.cursors) > 2)
    @rule()
    def close_cursor(self) -> None:
        cursor = min(self.cursors)
        self.tree.close_cursor(cursor)
        del self.cursors[cursor]

    @precondition(lambda self: len(self.watches) < 3)
    @rule(stream=st.sampled_from(["all", "usable"]))
    def watch(self, stream: str) -> None:
        self.watches[self.tree.watch(stream, self.patience)] = (stream, PrefixIndex())

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        watch = data.draw(st.sampled_from(sorted(self.watches)))
        self.tree.unwatch(watch)
        del self.watches[watch]

    @precondition(lambda self: self.watches)
    @rule(data=st.data(), salt=SALTS, prompt=prompts())
    def follow(self, data: st.DataObject, salt: bytes, prompt: Prefix) -> None:
        """Read a watch's events. However long it was not read, it then equals the tree's
        content."""
        watch = data.draw(st.sampled_from(sorted(self.watches)))
        stream, index = self.watches[watch]
        index.apply(self.tree.drain_events(watch))
        assert index.checkpoints == {
            prefix_hashes(array(prefix), salt)[-1]: len(prefix)
            for salt, prefix in self.oracle.states
        }
        stand = {prefix_hashes(array(prefix), salt)[-1] for salt, prefix in self.oracle.kv}
        assert index.pages == (stand if stream == "all" else set())
        assert index.usable_tokens(array(prompt), salt) == self.oracle.usable(salt, prompt)

    @rule(salt=SALTS, prompt=prompts())
    def match(self, salt: bytes, prompt: Prefix) -> None:
        self.oracle.check_match(self.tree.match(array(prompt), salt), salt, prompt, self.remembers)

    @precondition(lambda self: self.requests > 15)
    @rule()
    def flush(self) -> None:
        self.requests = 0
        self.tree.flush()
        self.oracle.learn(self.tree)
        self.oracle.forget()
        pinned = {place for held in self.oracle.allocations for place in held.pinned_states}
        assert set(self.oracle.states) == pinned & set(self.oracle.states)
        assert self.tree.stats().ghost_nodes == 0

    @invariant()
    def ids_are_held_once(self) -> None:
        self.tree.check_integrity()
        stats = self.tree.stats()
        for counts, owned in (
            (stats.pages, self.oracle.pages_by_owner()),
            (stats.slots, self.oracle.slots_by_owner()),
        ):
            ids = [each for group in owned.values() for each in group]
            assert len(ids) == len(set(ids)), "an id is in two live places"
            for owner in ("tree", "working", "granted", "quarantined"):
                assert len(owned[owner]) == getattr(counts, owner)
        slots = {each for group in self.oracle.slots_by_owner().values() for each in group}
        slabs = {page // 5 for group in self.oracle.pages_by_owner().values() for page in group}
        assert not slots & slabs, "a slab holds a slot and pages"

    @invariant()
    def leases_keep_their_pages(self) -> None:
        for held in self.oracle.allocations:
            assert held.allocation.pages.tolist() == held.pages
            assert held.allocation.working_slots == held.working

    def teardown(self) -> None:
        if not hasattr(self, "oracle"):
            return
        for held in self.oracle.allocations:
            if held.granted:
                self.tree.accept_received(held.allocation)
            self.tree.release(held.allocation)
        for quarantine in self.oracle.quarantined:
            self.tree.free_quarantined(quarantine)
        self.tree.flush()
        self.tree.check_integrity()
        stats = self.tree.stats()
        assert stats.slabs_free == stats.slabs_total
        assert stats.nodes == stats.allocations == stats.checkpoints == 0


LIVES = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestTree(TreeMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = LIVES


@pytest.mark.slow
class TestMoreLivesOfTheTree(TreeMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(LIVES, max_examples=MORE_EXAMPLES)
