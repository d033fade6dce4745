"""Engines for tests: tiny models, poisoned memory, and a loop without threads."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import (
    build_decode_engine,
    build_early_start,
    build_fused_engine,
    build_prefill_engine,
)
from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.engine import Engine
from tasuki.engine.handover.early_start import EarlyStart
from tasuki.engine.tiers.disk.disk_memory import DiskMemory
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import random_weights
from tasuki.model.grammar.grammar import Grammar
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, TierWrite
from tasuki.pycache.arena import Arena, CopyKind
from tasuki.pycache.layout import ArenaKey, CacheLayout, Place
from tasuki.pycache.packed import TreeNode
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.sending.sender import Sender
from tests.harness.qwen35 import config_of
from tests.harness.waiting import HANG_SECONDS

Kind = TypeVar("Kind")


class PoisonedCache(HybridPrefixCache):
    """A cache filling the memory of a page or slot with NaN when it changes its owner. A read
    before the first write then shows at once. Bytes read by a waiting copy are kept. host: memory
    below the arena, for a cache with a tier."""

    host: Arena | None = None

    def allocate(self, *args: Any, **terms: Any) -> Allocation | None:
        return self._poisoned(super().allocate(*args, **terms))

    def allocate_or_load(self, *args: Any, **terms: Any) -> Allocation | None:
        return self._poisoned(super().allocate_or_load(*args, **terms))

    def next_write(self) -> TierWrite | None:
        write = super().next_write()
        if write is not None and self.host is not None and write.source is None:
            _poison(self.host, [page for _, page in write.pages], [write.slot[1]])
        return write

    def allocate_to_receive(self, *args: Any, **terms: Any) -> Allocation | None:
        return self._poisoned(super().allocate_to_receive(*args, **terms))

    def extend(self, allocation: Allocation, capacity_tokens: int) -> bool:
        held = len(allocation.pages)
        extended = super().extend(allocation, capacity_tokens)
        self._poison(allocation.pages[held:].tolist(), ())
        return extended

    def take_checkpoint_slot(self, allocation: Allocation) -> int | None:
        slot = super().take_checkpoint_slot(allocation)
        self._poison((), () if slot is None else (slot,))
        return slot

    def insert_midway(
        self, allocation: Allocation, boundary: int, slot: int, kind: CheckpointKind
    ) -> tuple[int, int] | None:
        copy = super().insert_midway(allocation, boundary, slot, kind)
        if copy is not None:
            self._poison([copy[1]], ())
        return copy

    def _poisoned(self, allocation: Allocation | None) -> Allocation | None:
        if allocation is not None:
            self._poison(
                allocation.pages[allocation.shared_pages :].tolist(), allocation.working_slots
            )
        return allocation

    def _poison(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        arena, blocks = self.arena, self.arena.layout.blocks_per_slab
        moved = {copy.source for copy in self._copies if copy.kind is CopyKind.PAGE}
        forked = {copy.source for copy in self._copies if copy.kind is CopyKind.SLOT}
        fresh = [page for page in pages if page not in moved and page // blocks not in forked]
        _poison(arena, fresh, set(slots) - forked - {page // blocks for page in moved})


def _poison(arena: Arena, pages: Sequence[int], slots: Collection[int]) -> None:
    for kv in arena.views("kv"):
        # A scale byte of 255 is NaN for all codes.
        kv[pages] = 0xFF if kv.dtype is torch.uint8 else float("nan")
    for slot in slots:
        start = slot * arena.layout.slab_bytes
        state = arena.bytes[start : start + arena.layout.slot_bytes]
        state.view(torch.float32).fill_(float("nan"))


def engine_config(model: Path, **changes: object) -> EngineConfig:
    """Return an engine config with the largest number of drafts, because tests expect this
    number."""
    settings: dict[str, object] = {"dtype": "float32", "arena_mib": 32, "max_batch": 16}
    settings["draft_count"] = "most"
    return EngineConfig(model=str(model), **(settings | changes))  # type: ignore[arg-type]


class Lone:
    """One engine driven by hand: post messages to it, run it until idle, read its messages."""

    def __init__(
        self,
        config: EngineConfig,
        role: Role = Role.FUSED,
        parts: EngineParts | None = None,
        sender: Sender | None = None,
        early: EarlyStart | None = None,
    ) -> None:
        """Build the engine. early: early start of a decode engine; by default no step waits for
        layer chunks."""
        self.parts = parts or build_parts(config)
        self.engine = self._built(config, role, sender, early)
        self.said: list[m.Outbox] = []
        """All messages of the engine, each token as a message of its own."""

    def _built(
        self, config: EngineConfig, role: Role, sender: Sender | None, early: EarlyStart | None
    ) -> Engine:
        parts = self.parts
        cache = PoisonedCache(
            parts.arena,
            policy=config.cache_policy,
            attention_cost=parts.attention_cost,
            slabs=parts.slabs,
            tiers=parts.tiers,
        )
        cache.host = parts.host
        match role:
            case Role.FUSED:
                return build_fused_engine(config, parts, cache)
            case Role.PREFILL:
                assert sender is not None
                return build_prefill_engine(config, parts, cache, sender)
            case Role.DECODE:
                if early is None:
                    early = build_early_start(parts, lambda transfer_id: None, lambda: None)
                return build_decode_engine(config, parts, cache, early)

    def post(self, message: m.Inbox) -> None:
        self.engine.handle(message)
        self.said += m.tokens_apart(self.engine.take_outbox())

    def step(self) -> bool:
        worked = self.engine.step()
        self.said += m.tokens_apart(self.engine.take_outbox())
        return worked

    def run(self, steps: int = 100_000) -> None:
        """Run engine steps until nothing can run. steps: largest number of steps."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("the engine did not come to rest")

    def settle(self) -> None:
        """Run until idle, and until no picture is being decoded."""
        self.run()
        pictures = self.engine._pictures
        until = time.monotonic() + HANG_SECONDS
        while pictures is not None and pictures.is_decoding:
            assert time.monotonic() < until, "a picture is decoded for too long"
            time.sleep(self.engine.idle_seconds or 0.0)
            self.run()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def ask(
        self, request_id: str, prompt: Sequence[int], max_new_tokens: int, **changes: object
    ) -> list[int]:
        """Submit a request and run until idle. Returns the answer's tokens."""
        self.post(submit(request_id, prompt, max_new_tokens, **changes))
        self.run()
        return self.tokens(request_id)

    def ask_all(self, prompts: Mapping[str, Sequence[int]], max_new_tokens: int) -> None:
        """Submit all requests at once and run until idle."""
        for name, prompt in prompts.items():
            self.post(submit(name, prompt, max_new_tokens))
        self.run()

    def all_said(self, kind: type[Kind]) -> list[Kind]:
        return [item for item in self.said if isinstance(item, kind)]

    def tokens(self, request_id: str) -> list[int]:
        return [item.token for item in self.all_said(m.TokenOut) if item.request_id == request_id]

    def finished(self, request_id: str) -> m.Finished:
        (found,) = [item for item in self.all_said(m.Finished) if item.request_id == request_id]
        return found

    def hit(self, request_id: str) -> m.HitBreakdown:
        """Return the breakdown of a finished request's cached and lost prompt tokens."""
        found = self.finished(request_id).usage.hit
        assert found is not None
        return found

    def phases(self, request_id: str) -> list[str]:
        """Return the states a finished request went through, in order."""
        return [mark.state for mark in self.finished(request_id).life]

    def rejected(self, request_id: str) -> m.RequestError:
        (found,) = [
            item.error for item in self.all_said(m.Rejected) if item.request_id == request_id
        ]
        return found

    def flush(self) -> None:
        """Forget every cached prefix and all messages. REQUIRES: no request runs."""
        self.post(m.FlushCache(0))
        self.said.clear()

    def stats(self) -> m.StatsReply:
        self.post(m.StatsQuery(0))
        return self.all_said(m.StatsReply)[-1]

    def tree(self) -> list[TreeNode]:
        """Return the whole prefix tree of the cache, without names and times of last use, because
        these depend on earlier contents."""
        self.post(m.TreeQuery(0, 10_000))
        view = self.all_said(m.TreeReply)[-1].view
        assert view is not None
        return [replace(node, name=None, unused=0) for node in view]

    def assert_at_rest(self) -> None:
        """Check the engine at rest: no ended request holds anything, and every page and slot id is
        accounted for."""
        stats = self.stats()
        assert stats.integrity == "ok"
        assert stats.requests == {}
        assert stats.tree["leases"] == 0
        for pool in (stats.pages, stats.slots):
            owners = ("free", "working", "tree", "granted", "quarantined")
            assert sum(pool[owner] for owner in owners) == pool["total"]
            assert pool["working"] == pool["granted"] == pool["quarantined"] == pool["pinned"] == 0


def submit(
    request_id: str, prompt: Sequence[int], max_new_tokens: int, **changes: object
) -> m.Submit:
    sampling = changes.pop("sampling", None) or SamplingParams(
        max_new_tokens=max_new_tokens, ignore_eos=True
    )
    return m.Submit(
        m.RequestId(request_id),
        np.asarray(prompt, dtype=np.int32),
        sampling,  # type: ignore[arg-type]
        **changes,  # type: ignore[arg-type]
    )


TINY = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}


class GrammarsAtOnce(GrammarCompiler):
    """A grammar compiler working in the calling thread, because a test's loop ends when a step has
    no work."""

    def ready(self, grammar: Grammar, caller: str = "") -> bool:
        self.constraint(grammar, ())
        return True


def tiny_parts(
    arena_mib: float = 8.0,
    seed: int = 5,
    slabs: int | None = None,
    host_slabs: int | None = None,
    disk: DiskMemory | None = None,
    kv_dtype: str = "float32",
) -> EngineParts:
    """Return engine parts with a random model of four layers of two kinds, over a small arena.
    slabs: size of the arena, if given. host_slabs: slabs of the host memory below it; disk: memory
    below the host memory. kv_dtype: format of the KV, as in a layout."""
    model_config = config_of(TINY)
    layout = model_config.cache_layout(kv_dtype, "float32", "float32")
    slabs = slabs or int(arena_mib * 2**20) // layout.slab_bytes
    weights = random_weights(model_config, seed, torch.float32)
    model = Qwen35Model(model_config, weights)
    grammars = GrammarsAtOnce(LETTERS)
    return EngineParts(
        model_config,
        model,
        Arena(layout, slabs),
        StepCounter(),
        host=None if host_slabs is None else host_below(layout, host_slabs),
        disk=disk,
        grammars=grammars,
    )


def host_below(layout: CacheLayout, slabs: int) -> Arena:
    """Return host memory of `slabs` slabs for use below an arena, full of NaN."""
    host = Arena(layout, slabs, key=ArenaKey(Place.HOST))
    host.bytes.fill_(0xFF)
    return host


LETTERS = Vocabulary(
    tuple(b"" if token == 127 else bytes([token]) for token in range(TINY["vocab_size"])), (127,)
)
"""The tiny model's vocabulary: each token is an ASCII character. The last one ends an answer if a
request makes it a stop token, because the model has none."""


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return `length` random token ids of the tiny model's vocabulary."""
    return np.random.default_rng(seed).integers(0, TINY["vocab_size"], length).tolist()


def tiny_engine(
    arena_mib: float = 8.0,
    slabs: int | None = None,
    role: Role = Role.FUSED,
    parts: EngineParts | None = None,
    **settings: object,
) -> Lone:
    settings = {"draft_count": "most"} | settings
    config = EngineConfig(model="tiny", dtype="float32", **settings)  # type: ignore[arg-type]
    return Lone(config, role, parts or tiny_parts(arena_mib, slabs=slabs))


def alone(tokens: Sequence[int], max_new_tokens: int, **changes: object) -> list[int]:
    """Return the reference answer to a prompt: the request alone in a fresh engine, its whole
    prompt in one chunk. An answer is computed only once."""
    return [*_alone(tuple(tokens), max_new_tokens, tuple(sorted(changes.items())))]


@cache
def _alone(
    tokens: tuple[int, ...], max_new_tokens: int, changes: tuple[tuple[str, object], ...]
) -> tuple[int, ...]:
    engine = tiny_engine(prefill_chunk_tokens=4096)
    return tuple(engine.ask("r", tokens, max_new_tokens, **dict(changes)))


def assert_answered_as_alone(
    engine: Lone, prompts: Mapping[str, Sequence[int]], max_new_tokens: int
) -> None:
    for name, tokens in prompts.items():
        assert engine.tokens(name) == alone(tokens, max_new_tokens), name
