"""The parts of an engine whose model is shared out among several ranks, and those of a follower.

The leader's process has the engine and rank 0; each other rank is a process that it starts. All of
them load at once, meet, and have arenas of as many slabs: an id means the same on every rank.
"""

import socket
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from tasuki.engine.accounting.auto_sizes import arena_slabs
from tasuki.engine.messages.types import Message
from tasuki.engine.tiers.disk.disk_memory import DiskMemory, disk_memory
from tasuki.engine.tiers.host_memory import available_bytes, host_slabs
from tasuki.engine.tiers.kept.known_weights import digest_of_weights
from tasuki.engine.tiers.tier_copiers import tier_copiers
from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.safetensors_folder import load_weights
from tasuki.model.weights.sharding.shard import ExpertCut, Shard
from tasuki.pycache.arena import Arena
from tasuki.pycache.arena_key import ArenaKey, Place
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.ranks.spans import RankSpans
from tasuki.transfer.windows.step_counter import StepCounter
from tasuki.utils.child_process import Job
from tasuki.utils.progress import Progress, no_progress

from .build import EngineParts, asked_model, build_parts, count_idle_plan, kept_contract
from .config import EngineConfig, EngineConfigError
from .parallel.agreed_steps import Report, ReportedSteps
from .parallel.collectives import Collectives
from .parallel.follower import follow
from .parallel.leader_draws import LeaderDraws
from .parallel.messages import Join
from .parallel.rank_process import RankProcess, start_ranks
from .parallel.ranks import Ranks
from .parallel.shared_arenas import SharedArenas, open_arena
from .parallel.tiers.follower_tiers import FollowerTiers
from .role import Role
from .runner.base import Runner
from .runner.cpu_runner import CpuRunner

StartRanks = Callable[[Sequence[Job]], list[RankProcess]]


def build_node_parts(
    config: EngineConfig, progress: Progress = no_progress, role: Role = Role.FUSED
) -> EngineParts:
    """As build_parts(), of as many ranks as the config asks for. Raises RankLost too."""
    if config.tensor_parallel == 1:
        return build_parts(config, progress, role)
    return build_leader_parts(config, progress, role)


def build_leader_parts(
    config: EngineConfig,
    progress: Progress = no_progress,
    role: Role = Role.FUSED,
    start: StartRanks = start_ranks,
) -> EngineParts:
    """start: of the followers' processes. REQUIRES: more than one rank; the calling thread lives as
    long as the engine."""
    if not config.model:
        raise EngineConfigError("model is not set: give the folder of a checkpoint with --model")
    # Before anything is started.
    shard_of(config, 0).part(asked_model(config))
    with tempfile.TemporaryDirectory(prefix="tasuki-ranks-") as folder:
        meeting = Path(folder) / "meeting"
        followers = range(1, config.tensor_parallel)
        jobs = [partial(run_follower, config, role, rank, meeting) for rank in followers]
        ranks = Ranks(start(jobs), config.rank_timeout)
        try:
            leader = RankInMemory(config, role, 0, meeting, progress)
            slabs = min(leader.slabs, *ranks.loaded())
            shared = leader.share(slabs, ranks)
            join = leader.tiers_of(slabs)
            ranks.join(join)
            leader.meet(join, partial(ranks.agreed.report, 0))
            ranks.joined()
            if shared is not None:
                shared.met()
        except BaseException:
            ranks.close()
            raise
    whole = leader.config
    vocabulary = Vocabulary.load(Path(config.model), whole.vocab, whole.eos_ids)
    return EngineParts(
        whole,
        leader.model,
        leader.arena,
        leader.steps,
        host=leader.host,
        disk=leader.disk,
        grammars=GrammarCompiler(vocabulary),
        ranks=ranks,
        together=leader.draws,
        shared=shared,
    )


def run_follower(
    config: EngineConfig, role: Role, rank: int, meeting: Path, connection: socket.socket
) -> int:
    """A follower's main. Returns the exit status."""
    return follow(
        connection, partial(RankInMemory, config, role, rank, meeting), config.rank_timeout
    )


def shard_of(config: EngineConfig, rank: int) -> Shard:
    experts = ExpertCut.BY_EXPERT if config.expert_parallel else ExpertCut.BY_WIDTH
    return Shard(rank, config.tensor_parallel, experts)


class RankInMemory:
    """As LoadedRank. config: of the whole model."""

    def __init__(
        self,
        config: EngineConfig,
        role: Role,
        rank: int,
        meeting: Path,
        progress: Progress = no_progress,
    ) -> None:
        """Loads. meeting: as of GlooCollectives. Raises as build_parts()."""
        torch.set_num_threads(config.threads)
        self._settings = config
        self._meeting = meeting
        self._shard = shard_of(config, rank)
        self.config = asked_model(config)
        self._part = self._shard.part(self.config)
        self.slabs = arena_slabs(config, self._part, role, None)
        dtype = getattr(torch, config.dtype)
        self._weights = load_weights(
            config.model, self.config, dtype, "cpu", progress, shard=self._shard
        )
        # Somebody waits for the ranks of a node that hands over.
        self._hands_over = role is not Role.FUSED
        self._memory: torch.Tensor | None = None
        self.steps: StepCounter
        self.draws: LeaderDraws
        self.model: Qwen35Model
        self.arena: Arena
        self.host: Arena | None = None
        self.disk: DiskMemory | None = None

    def tiers_of(self, slabs: int) -> Join:
        """As the leader: how much every rank has. Raises EngineConfigError."""
        settings = self._settings
        host = 0
        if settings.host_cache_gib is not None:
            host = host_slabs(settings, self._layout, available_bytes())
        weights = ""
        if settings.disk_cache is not None:
            weights = digest_of_weights(settings.model, settings.disk_cache)
        return Join(slabs, host, weights)

    @property
    def _layout(self) -> CacheLayout:
        settings = self._settings
        return self._part.cache_layout(settings.stored_kv, settings.dtype, settings.ssm_dtype)

    def share(self, slabs: int, ranks: Ranks) -> SharedArenas | None:
        """As the leader, before the followers join: memory for all arenas. None where nothing is
        handed over, and each rank allocates its own. Raises EngineConfigError."""
        if not self._hands_over:
            return None
        spans = self._spans(slabs)
        try:
            shared = SharedArenas.create(self._meeting.parent, spans, ranks.agreed)
        except OSError as error:
            raise EngineConfigError(
                f"arenas of {spans.region_bytes >> 20} MiB cannot be allocated for "
                f"{spans.ranks} ranks: give less --arena-mib, or free memory"
            ) from error
        self._memory = shared.memory[: spans.arena_bytes]
        return shared

    def _spans(self, slabs: int) -> RankSpans:
        settings = self._settings
        layout = self.config.cache_layout(settings.stored_kv, settings.dtype, settings.ssm_dtype)
        return RankSpans(layout, self._shard.ranks, slabs)

    def meet(self, join: Join, report: Report) -> None:
        """Connect to the other ranks, and have so many slabs. report: as join()'s."""
        from .parallel.gloo import GlooCollectives

        settings, shard, slabs = self._settings, self._shard, join.slabs
        # A step that takes longer than this ends the node anyway.
        collectives: Collectives = GlooCollectives(
            self._meeting, shard.rank, shard.ranks, settings.watchdog_timeout
        )
        backend = TorchBackend(self._part, collectives.sum)
        self.model = Qwen35Model(self._part, self._weights, backend, collectives.gather)
        self.draws = LeaderDraws(collectives, shard.rank)
        layout = self._layout
        self.steps = ReportedSteps(report) if self._hands_over else StepCounter()
        if self._hands_over and self._memory is None:
            spans = self._spans(slabs)
            assert spans.part == layout, "slices of weights and of arenas differ"
            self._memory = open_arena(self._meeting.parent, spans, shard.rank)
        key = ArenaKey(rank=shard.rank, ranks=shard.ranks)
        self.arena = Arena(layout, slabs, key=key, memory=self._memory)
        if join.host_slabs:
            below = ArenaKey(Place.HOST, rank=shard.rank, ranks=shard.ranks)
            self.host = Arena(layout, join.host_slabs, key=below)
            self.disk = disk_memory(settings, layout, partial(self._contract, join.weights))

    def _contract(self, weights: str) -> dict[str, str]:
        """Of this rank of so many: another number of them finds nothing of it."""
        shard = self._shard
        whole = kept_contract(weights, self.config, self._weights, self._layout)
        return {**whole, "rank": f"{shard.rank}/{shard.ranks}"}

    @property
    def kept(self) -> bytes:
        standing = None if self.disk is None else self.disk.index.standing
        return b"" if standing is None else standing.kept_of()

    def tiers(self, send: Callable[[Message], None]) -> FollowerTiers | None:
        """As a follower."""
        if self.host is None:
            return None
        copiers = tier_copiers(self.arena, self.host, self.disk)
        if self.disk is not None:
            # The leader's tree has what stands.
            self.disk.index.standing = None
        return FollowerTiers(copiers, send)

    def idle_plan_ended(self) -> None:
        count_idle_plan(self.steps)

    def join(self, join: Join, report: Report) -> Runner:
        """As a follower."""
        self.meet(join, report)
        # The leader alone has grammars.
        return CpuRunner(self.model, self.arena, self.steps, GrammarCompiler(None), self.draws)
