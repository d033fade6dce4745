"""Random lives of a tree with tiers below it; each step is compared with a model in plain Python.

The model knows the tokens of each id. It applies a copy as late as possible, at its
acknowledgement, so a source id reused by then brings its new content. A request must start from its
own prompt only. A second tree gets the same calls and must decide the same.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tasuki.client.cache_events import PrefixIndex
from tasuki.pycache._cpp_cache import (
    PAGE_TOKENS,
    Allocation,
    CheckpointKind,
    ImpossibleRequest,
    PrefixCache,
    TierConfig,
    TierWrite,
    TreeConfig,
    prefix_hashes,
)
from tests.cache.test_tree_state_machine import prompts
from tests.cache.tree_oracle import Prefix, array, whole

EXAMPLES = int(os.environ.get("TASUKI_TREE_EXAMPLES", "100"))
Bytes = dict[tuple[int | None, int], Prefix]  # by place and id; None is the arena
LOST: Prefix = (-7,)  # ids never written, or of a torn copy


class TierMachine(RuleBasedStateMachine):
    @initialize(
        slabs=st.integers(4, 9),
        tiers=st.lists(st.integers(3, 12), min_size=1, max_size=2),
        policy=st.sampled_from(["lru", "value", "auto"]),
        ranks=st.sampled_from([1, 1, 2]),
        ghosts=st.sampled_from([10_000, 3]),
        filling=st.sampled_from(["as_dropped", "ahead"]),
    )
    def start(
        self, slabs: int, tiers: list[int], policy: str, ranks: int, ghosts: int, filling: str
    ) -> None:
        made = [self.made(slabs, tiers, policy, ranks, ghosts, filling) for _ in range(2)]
        self.twins = made
        self.tree = self.twins[0]
        self.ranks = ranks
        self.pages: Bytes = {}
        self.slots: Bytes = {}
        self.loading: list[tuple[list[Allocation], bytes, Prefix]] = []
        self.writing: list[tuple[TierWrite, bool]] = []
        self.index = PrefixIndex()
        self.watch, _ = (twin.watch("usable", 10_000) for twin in self.twins)
        self.loads = 0

    @staticmethod
    def made(
        slabs: int, tiers: list[int], policy: str, ranks: int, ghosts: int, filling: str
    ) -> PrefixCache:
        return PrefixCache(
            TreeConfig(
                slabs=slabs,
                blocks_per_slab=5,
                pages_per_slab=3,
                max_ghost_nodes=ghosts,
                policy=policy,
                attention_cost=1e-3,
                tiers=[
                    TierConfig(slabs=size, page_cost=1.0, slot_cost=4.0, filling=filling)
                    for size in tiers
                ],
                ranks=ranks,
            )
        )

    @rule(prompt=prompts(), salt=st.sampled_from([b"", b"tenant"]), ends=st.booleans())
    def turn(self, prompt: Prefix, salt: bytes, ends: bool) -> None:
        """Run a request with a prefix stored in any tier; it continues when its load has ended."""
        found = self.tree.match(array(prompt), salt)
        assert found.usable_tokens + sum(found.miss_reasons.as_dict().values()) == len(prompt)
        assert all(found.usable_tokens < each.boundary < len(prompt) for each in found.stored)
        try:
            held = [
                twin.allocate_or_load(
                    array(prompt), salt=salt, capacity_tokens=len(prompt), working_slots=1
                )
                for twin in self.twins
            ]
        except ImpossibleRequest:
            return
        self.move()
        allocations = [each for each in held if each is not None]
        assert len(allocations) in (0, len(self.twins))
        if not allocations:
            assert self.loading, "nothing else holds room"
            return
        if allocations[0].load is None:
            self.finish(allocations, salt, prompt, ends)
        else:
            self.loads += 1
            self.loading.append((allocations, salt, prompt))

    def move(self) -> None:
        moves = [twin.drain_moves() for twin in self.twins]
        assert moves[0] == moves[-1]
        for source, target in moves[0]:
            self.pages[None, target] = self.pages[None, source]

    def finish(
        self, allocations: list[Allocation], salt: bytes, prompt: Prefix, ends: bool = True
    ) -> None:
        """Check the start of a request, compute the rest and leave a state at its end."""
        allocation = allocations[0]
        cached = allocation.cached_tokens
        assert cached == allocation.match.usable_tokens
        pages = allocation.pages.tolist()
        for place in range(whole(cached) // PAGE_TOKENS):
            end = (place + 1) * PAGE_TOKENS
            assert self.pages[None, pages[place]] == self.named(salt, prompt[:end])
        if cached:
            source = allocation.cow_source_slot
            slot = allocation.working_slots[0] if source is None else source
            assert self.slots[None, slot] == self.named(salt, prompt[:cached])
        if cached % PAGE_TOKENS:
            page = pages[cached // PAGE_TOKENS]
            copied = allocation.tail_copy
            source_page = page if copied is None else copied[0]
            assert self.pages[None, source_page] == self.named(salt, prompt[:cached])
        for place in range(cached // PAGE_TOKENS, len(pages)):
            end = min((place + 1) * PAGE_TOKENS, len(prompt))
            self.pages[None, pages[place]] = self.named(salt, prompt[:end])
        end = len(prompt) if ends else whole(len(prompt))
        slot = allocation.working_slots[0]
        self.slots[None, slot] = self.named(salt, prompt[:end])
        for twin, each in zip(self.twins, allocations, strict=True):
            if end > cached:
                twin.insert(each, end, slot, CheckpointKind.TURN_END)
            twin.release(each)

    def named(self, salt: bytes, prefix: Prefix) -> Prefix:
        return (*salt, -1, *prefix)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), is_good=st.sampled_from([True, True, True, False]))
    def end_load(self, data: st.DataObject, is_good: bool) -> None:
        place = data.draw(st.integers(0, len(self.loading) - 1))
        allocations, salt, prompt = self.loading.pop(place)
        load = allocations[0].load
        assert load is not None
        for tier, source, target in load.pages:
            self.pages[None, target] = self.pages.get((tier, source), LOST)
        tier, source, target = load.state
        self.slots[None, target] = self.slots.get((tier, source), LOST)
        counted = self.tree.stats().prompt_tokens
        self.acknowledge(load.id, is_good)
        assert [each.is_void for each in allocations] == [not is_good] * len(self.twins)
        if is_good:
            assert allocations[0].cached_tokens > 0
            self.finish(allocations, salt, prompt)
            return
        assert allocations[0].cached_tokens == 0
        assert self.tree.stats().prompt_tokens == counted - len(prompt)
        for twin, each in zip(self.twins, allocations, strict=True):
            twin.release(each)
        self.compute(prompt, salt)

    def compute(self, prompt: Prefix, salt: bytes) -> None:
        """Run a request from the arena's content alone."""
        held = [
            twin.allocate(array(prompt), salt=salt, capacity_tokens=len(prompt), working_slots=1)
            for twin in self.twins
        ]
        self.move()
        allocations = [each for each in held if each is not None]
        if allocations:
            self.finish(allocations, salt, prompt)

    @precondition(lambda self: self.loading)
    @rule()
    def give_up(self) -> None:
        """Give up a load. Its acknowledgements come when its ids are free again, and change
        nothing."""
        allocations, _, _ = self.loading.pop(0)
        load = allocations[0].load
        assert load is not None
        for twin, each in zip(self.twins, allocations, strict=True):
            twin.free_quarantined(twin.quarantine(each))
        self.acknowledge(load.id, True)

    def acknowledge(self, transfer: int, is_good: bool) -> None:
        for twin in self.twins:
            for rank in range(self.ranks):
                twin.acknowledge(transfer, is_good or rank > 0)

    @precondition(lambda self: len(self.writing) < 3)
    @rule(is_good=st.sampled_from([True, True, True, False]))
    def begin_write(self, is_good: bool) -> None:
        writes = [twin.next_write() for twin in self.twins]
        write = writes[0]
        assert [each is None for each in writes] == [write is None] * len(writes)
        if write is not None:
            assert writes[-1] is not None and writes[-1].pages == write.pages
            self.writing.append((write, is_good))

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def end_write(self, data: st.DataObject) -> None:
        """End a write; its bytes are read as late as possible."""
        place = data.draw(st.integers(0, len(self.writing) - 1))
        self.carry(*self.writing.pop(place))

    def carry(self, write: TierWrite, is_good: bool) -> None:
        for source, target in write.pages:
            read = self.pages.get((write.source, source), LOST)
            self.pages[write.target, target] = read if is_good else LOST
        source, target = write.slot
        read = self.slots.get((write.source, source), LOST)
        self.slots[write.target, target] = read if is_good else LOST
        self.acknowledge(write.id, is_good)

    @rule()
    def write_all(self) -> None:
        for _ in range(20):
            self.begin_write(True)
            if not self.writing:
                return
            self.carry(*self.writing.pop(0))

    @rule(
        prompt=prompts(),
        salt=st.sampled_from([b"", b"tenant"]),
        tier=st.integers(0, 1),
        ends=st.booleans(),
    )
    def adopt(self, prompt: Prefix, salt: bytes, tier: int, ends: bool) -> None:
        """Adopt a prompt's state written to a tier by another node."""
        prompt = prompt if ends else prompt[: whole(len(prompt))]
        tier = min(tier, len(self.tree.stats().tiers) - 1)
        if not prompt:
            return
        kind = CheckpointKind.TURN_END
        found = [twin.adopt(tier, array(prompt), salt=salt, kind=kind) for twin in self.twins]
        assert found[0] == found[-1]
        if found[0] is None:
            return
        pages, first, slot = found[0]
        assert len(pages) == -(-len(prompt) // PAGE_TOKENS)
        for place, page in enumerate(pages):
            end = min((place + 1) * PAGE_TOKENS, len(prompt))
            named = self.named(salt, prompt[:end])
            if place < first:
                assert self.pages[tier, page] == named
            self.pages[tier, page] = named
        self.slots[tier, slot] = self.named(salt, prompt)
        stored = self.tree.match(array((*prompt, 0)), salt).stored
        assert len(prompt) in [each.boundary for each in stored]

    @precondition(lambda self: self.loads > 2)
    @rule()
    def flush(self) -> None:
        self.loads = 0
        for twin in self.twins:
            twin.flush()
        if not self.loading and not self.writing:
            assert all(tier.slabs_free == tier.slabs_total for tier in self.tree.stats().tiers)

    @rule(prompt=prompts(), salt=st.sampled_from([b"", b"tenant"]))
    def follow(self, prompt: Prefix, salt: bytes) -> None:
        """Read the watch: a prefix exists while any place has it."""
        self.index.apply(self.tree.drain_events(self.watch))
        found = self.tree.match(array(prompt), salt)
        deepest = max([found.usable_tokens, *(each.boundary for each in found.stored)])
        assert self.index.usable_tokens(array(prompt), salt) == deepest
        for each in found.stored:
            prefix = prefix_hashes(array(prompt[: each.boundary]), salt)[-1]
            assert self.index.places[prefix] == 1 + each.tier
        if found.usable_tokens:
            prefix = prefix_hashes(array(prompt[: found.usable_tokens]), salt)[-1]
            assert self.index.places[prefix] == 0
        for each in found.stored:
            assert prefix_hashes(array(prompt[: each.boundary]), salt)[-1] in self.index.checkpoints

    @invariant()
    def holds_what_it_says(self) -> None:
        if hasattr(self, "twins"):
            self.tree.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "twins"):
            return
        while self.loading:
            self.give_up()
        for write, _ in self.writing:
            self.acknowledge(write.id, True)
        self.writing = []
        self.tree.flush()
        self.tree.check_integrity()
        stats = self.tree.stats()
        assert stats.slabs_free == stats.slabs_total
        for tier in stats.tiers:
            assert tier.slabs_free == tier.slabs_total


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
