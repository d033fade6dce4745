"""The parts of an engine with a model shared among several ranks, and the parts of a follower (a
rank without the engine).

The leader's process has the engine and rank 0; it starts a process for each other rank. All ranks
load their weights at the same time, then connect. Their arenas have equally many slabs, so a page
or slot id means the same on every rank.
"""

import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.parallel.collectives import Collectives, Exchange, GlooCollectives
from tasuki.engine.parallel.follower import follow
from tasuki.engine.parallel.leader_runner import LeaderDraws
from tasuki.engine.parallel.messages import Join
from tasuki.engine.parallel.pictures import FollowerRows
from tasuki.engine.parallel.ranks import RankProcess, Ranks, start_ranks
from tasuki.engine.parallel.shared_arenas import (
    AgreedSteps,
    HostArenas,
    Report,
    SharedArenas,
    open_arena,
)
from tasuki.engine.parallel.tiers import FollowerTiers, SendToLeader
from tasuki.engine.parallel.weights import FollowerWeights, RankedStaging
from tasuki.engine.runner.base import Runner
from tasuki.engine.tiers.digests import DigestKind
from tasuki.engine.tiers.disk.disk_memory import disk_memory
from tasuki.engine.tiers.disk.kept_folder import digest_of_weights, digests_of_weights
from tasuki.engine.tiers.host_memory import arena_below, available_bytes, host_slabs
from tasuki.engine.tiers.tier_copiers import tier_copiers
from tasuki.engine.updates.staging import Staging, has_finite_weights
from tasuki.model.config import ModelConfig
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import build_model, head_block, load_weights, read_tables
from tasuki.model.families.registry import family_of
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.shard import ExpertCut, Shard
from tasuki.model.weights.source import ShardedSource
from tasuki.model.weights.tensor_tree import NO_DIGESTS
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import ArenaKey, CacheLayout, Place
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.ranks.region import DeviceRegion, HostRegion, RankRegion, RankSpans
from tasuki.utils.child_process import Job
from tasuki.utils.logs import Progress, no_progress

from .engines import build_runner, runner_sizes
from .memory_plan import arena_slabs, layout_of
from .parts import (
    EngineParts,
    activations_of,
    asked_model,
    build_parts,
    check_activations,
    kept_contract,
    rotary_sections,
    torch_device,
    use_device,
)
from .towers import build_sight, build_tower, keeps_tower

StartRanks = Callable[[Sequence[Job]], list[RankProcess]]
LoadShard = Callable[[EngineConfig, ModelConfig, Shard, torch.device, Progress], Weights]
"""A function to load a rank's slices of the weights, from the model's config. Can be pickled."""


def load_shard(
    config: EngineConfig, model: ModelConfig, shard: Shard, device: torch.device, progress: Progress
) -> Weights:
    """Load the weights of rank `shard` from the checkpoint's folder. Raises WeightsError."""
    dtype = getattr(torch, config.compute_dtype)
    weights = load_weights(config.model, model, dtype, device, progress, shard=shard)
    if config.ngram_table == "host" and not shard.rank:
        read_tables(weights)
    return weights


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """Return the rank's device. `cuda` means one visible GPU for each rank, in order. `cuda:N`
    means GPU N for all ranks: slow, for tests. Raises EngineConfigError for too few GPUs."""
    device = torch_device(config)
    if device.type == "cpu":
        return device
    index = rank if device.index is None else device.index
    seen = torch.cuda.device_count()
    if index >= seen:
        raise EngineConfigError(
            f"tensor_parallel is {config.tensor_parallel}, and {seen} GPUs are visible here, of "
            "which each rank takes one: give a lower --tensor-parallel, or more GPUs in "
            "CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", index)


def shared_model(config: EngineConfig) -> ModelConfig:
    """Return asked_model() for several ranks: with the blocks of head rows no rank border may
    cut."""
    model = asked_model(config)
    return replace(model, head_block=head_block(config.model, model))


def load_vocabulary(config: EngineConfig, model: ModelConfig) -> Vocabulary | None:
    """Load the vocabulary from the checkpoint's folder."""
    return Vocabulary.load(Path(config.model), model.vocab, model.eos_ids)


@dataclass(frozen=True)
class RankSource:
    """The source of a model for ranks. model: returns the whole model's config. weights: loads a
    rank's slices of the weights. vocabulary: returns the tokens' texts, if known. Can be
    pickled."""

    model: Callable[[EngineConfig], ModelConfig] = shared_model
    weights: LoadShard = load_shard
    vocabulary: Callable[[EngineConfig, ModelConfig], Vocabulary | None] = load_vocabulary


def build_node_parts(
    config: EngineConfig, progress: Progress = no_progress, role: Role = Role.FUSED
) -> EngineParts:
    """Build the parts: by build_parts() for one rank, else as the leader of several. Raises
    RankLost in addition."""
    if config.tensor_parallel == 1:
        return build_parts(config, progress, role)
    return build_leader_parts(config, progress, role)


def build_leader_parts(
    config: EngineConfig,
    progress: Progress = no_progress,
    role: Role = Role.FUSED,
    start: StartRanks = start_ranks,
    source: RankSource | None = None,
) -> EngineParts:
    """Start the follower processes and build the leader's parts. start: starts the followers'
    processes. source: the model's source; None: the config's folder. REQUIRES: more than one rank;
    the calling thread lives as long as the engine."""
    if source is None:
        if not config.model:
            raise EngineConfigError(
                "model is not set: give the folder of a checkpoint with --model"
            )
        source = RankSource()
    # Check the model before any process is started.
    whole = source.model(config)
    family_of(whole).cuts(whole).part(shard_of(config, 0))
    on_gpus = rank_device(config, config.tensor_parallel - 1).type != "cpu"
    check_activations(config, whole)
    with tempfile.TemporaryDirectory(prefix="tasuki-ranks-") as folder:
        meeting = Path(folder) / "meeting"
        followers = range(1, config.tensor_parallel)
        jobs = [partial(run_follower, config, role, rank, meeting, source) for rank in followers]
        ranks = Ranks(start(jobs), config.rank_timeout)
        try:
            leader = RankInMemory(config, role, 0, meeting, source, progress)
            slabs = min(leader.slabs, *ranks.loaded())
            arenas = leader.host_arenas(slabs)
            join = leader.tiers_of(slabs)
            ranks.join(join)
            parts = leader.meet(join, partial(ranks.agreed.report, 0))
            if not on_gpus:
                # On GPUs all ranks capture their graphs together, later.
                ranks.joined()
            if arenas is not None:
                arenas.met()
        except BaseException:
            ranks.close()
            raise
    assert parts.collectives is not None
    ranks.exchange_by(parts.collectives)
    return replace(
        parts,
        grammars=GrammarCompiler(source.vocabulary(config, leader.config)),
        ranks=ranks,
        shared=leader.shared(slabs, ranks.agreed),
        staging=RankedStaging(leader.staging(), ranks),
    )


def run_follower(
    config: EngineConfig,
    role: Role,
    rank: int,
    meeting: Path,
    source: RankSource,
    connection: socket.socket,
) -> int:
    """Run the process of follower `rank` until it ends. Return its exit status."""
    load = partial(RankInMemory, config, role, rank, meeting, source)
    return follow(connection, load, config.rank_timeout)


def shard_of(config: EngineConfig, rank: int) -> Shard:
    experts = ExpertCut.BY_EXPERT if config.expert_parallel else ExpertCut.BY_WIDTH
    return Shard(rank, config.tensor_parallel, experts)


class RankInMemory:
    """One rank's part of the model, in memory. A LoadedRank. config: the whole model's."""

    def __init__(
        self,
        config: EngineConfig,
        role: Role,
        rank: int,
        meeting: Path,
        source: RankSource,
        progress: Progress = no_progress,
    ) -> None:
        """Load the rank's weights. meeting: path of a new file shared by the ranks, see
        GlooCollectives. Raises the errors of build_parts()."""
        torch.set_num_threads(config.threads)
        self._settings = config
        self._role = role
        self._meeting = meeting
        self._shard = shard_of(config, rank)
        self._device = rank_device(config, rank)
        use_device(self._device)
        self.config = source.model(config)
        cuts = family_of(self.config).cuts(self.config)
        self._part: ModelConfig = cuts.part(self._shard)
        self.slabs = arena_slabs(
            config,
            self._part,
            role,
            self._free(),
            partial(ShardedSource, cuts=cuts, shard=self._shard),
        )
        self._weights = source.weights(config, self.config, self._shard, self._device, progress)
        self._tower = build_tower(config, self._device) if config.model else None
        self._sight = build_sight(config, role) if config.model else None
        # On a node with a hand-over, peers wait for the steps of its ranks.
        self._hands_over = role is not Role.FUSED
        self._memory: torch.Tensor | None = None
        self._region: RankRegion | None = None
        self._source = source
        self._assembly: Assembly
        self._parts: EngineParts
        self._pictures: FollowerRows | None = None

    def _free(self) -> int | None:
        if self._device.type == "cpu":
            return None
        return self._settings.usable_of(*torch.cuda.mem_get_info(self._device))

    def tiers_of(self, slabs: int) -> Join:
        """Return the message Join: slabs of every rank's arena and host tier, and the weights'
        digest. Tiers not configured have 0 and an empty digest. Called on the leader. Raises
        EngineConfigError."""
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
        return layout_of(self._part, self._settings)

    def host_arenas(self, slabs: int) -> HostArenas | None:
        """Make the shared memory of all ranks' arenas, on the leader, before the followers join.
        Return None on a node without hand-overs, and on GPUs, because each rank there allocates its
        own. Raises EngineConfigError."""
        if not self._hands_over or self._device.type != "cpu":
            return None
        spans = self._spans(slabs)
        try:
            made = HostArenas.create(self._meeting.parent, spans)
        except OSError as error:
            raise EngineConfigError(
                f"arenas of {spans.region_bytes >> 20} MiB cannot be allocated for "
                f"{spans.ranks} ranks: give less --arena-mib, or free memory"
            ) from error
        self._memory = made.memory[: spans.arena_bytes]
        self._region = HostRegion(made.memory, spans.layout)
        return made

    def shared(self, slabs: int, agreed: AgreedSteps) -> SharedArenas | None:
        """Return all ranks' arenas, for a transport to send from and receive to; None without
        hand-overs. Called on the leader, after all ranks are connected."""
        if self._region is None:
            return None
        return SharedArenas(self._region, self._spans(slabs), agreed)

    def _spans(self, slabs: int) -> RankSpans:
        layout = layout_of(self.config, self._settings)
        return RankSpans(layout, self._shard.ranks, slabs)

    def meet(self, join: Join, report: Report) -> EngineParts:
        """Connect to the other ranks, allocate an arena of the agreed number of slabs, and return
        the parts. report: called with this rank's step counter, as in join()."""
        settings, shard, slabs = self._settings, self._shard, join.slabs
        collectives, exchange, rows = self._collectives()
        layout = self._layout
        if self._hands_over and self._memory is None and exchange is None:
            spans = self._spans(slabs)
            assert spans.part == layout, "slices of weights and of arenas differ"
            self._memory = open_arena(self._meeting.parent, spans, shard.rank)
        key = ArenaKey(rank=shard.rank, ranks=shard.ranks)
        host, disk = None, None
        if join.host_slabs:
            below = ArenaKey(Place.HOST, rank=shard.rank, ranks=shard.ranks)
            host = arena_below(layout, join.host_slabs, settings.device, below)
            disk = disk_memory(
                settings, partial(layout_of, self._part), partial(self._contract, join.weights)
            )
        arena = Arena(layout, slabs, self._device, key=key, memory=self._memory)
        if self._hands_over and exchange is not None:
            from tasuki.engine.parallel.peer_collectives import exchanged_arenas

            arenas = exchanged_arenas(exchange, shard.rank, arena.bytes)
            self._region = DeviceRegion(arenas, arena.bytes, self._spans(slabs))
        self._assembly = Assembly(
            reduce=collectives.sum,
            gather=collectives.gather,
            rotary_sections=rotary_sections(self._sight),
            activations=activations_of(settings),
        )
        self._parts = EngineParts(
            self.config,
            build_model(self._part, self._weights, self._assembly),
            arena,
            StepCounter(report) if self._hands_over else StepCounter(),
            host=host,
            disk=disk,
            together=LeaderDraws(collectives, shard.rank),
            collectives=collectives,
            tower=self._tower,
            sight=self._sight,
            rows=rows,
        )
        return self._parts

    def _collectives(self) -> tuple[Collectives, Exchange | None, GlooCollectives]:
        """Connect to the other ranks. Return the collectives, on GPUs the exchange used to share
        memory handles, and the exchange of pictures' rows."""
        settings, shard = self._settings, self._shard
        # A longer step ends the node anyway.
        seconds = settings.watchdog_timeout
        host = GlooCollectives(self._meeting, shard.rank, shard.ranks, seconds)
        if self._device.type == "cpu":
            return host, None, host
        from tasuki.engine.parallel.peer_collectives import Mailboxes, PeerCollectives

        mailboxes = Mailboxes.met(host.exchange, shard.rank, self._device)
        return PeerCollectives(mailboxes, seconds), host.exchange, host

    def _contract(self, weights: str) -> dict[str, str]:
        """Return the settings to compare before this rank's kept data of an earlier run is used.
        They include the rank and the number of ranks, so another number of ranks finds no data.
        weights: digest of the weights."""
        shard = self._shard
        kind = DigestKind.of(self._device)
        whole = kept_contract(
            *(weights, self.config, self._weights, self._layout, kind, self._sight),
            self._settings.rounded_steps,
        )
        return {**whole, "rank": f"{shard.rank}/{shard.ranks}"}

    @property
    def begun(self) -> int:
        assert self._parts.collectives is not None
        return self._parts.collectives.begun

    @property
    def kept(self) -> bytes:
        disk = self._parts.disk
        standing = None if disk is None else disk.index.standing
        return b"" if standing is None else standing.kept_of()

    def tiers(self, send: SendToLeader) -> FollowerTiers | None:
        """Make the copiers of this rank's tiers; None without tiers. send: sends a message to the
        leader. Called on a follower."""
        parts = self._parts
        if parts.host is None:
            return None
        copiers = tier_copiers(parts.arena, parts.host, parts.disk)
        if parts.disk is not None:
            # The leader's tree lists the kept entries.
            parts.disk.index.standing = None
        return FollowerTiers(copiers, send)

    def staging(self) -> Staging:
        """Return the stager of this rank's new weights, after meet(). The leader alone digests
        them."""
        settings, source, shard = self._settings, self._source, self._shard
        digests = partial(digests_of_weights, folder=settings.disk_cache)
        return Staging(
            model=self._parts.model,
            config=self.config,
            read_config=lambda folder: source.model(replace(settings, model=folder)),
            read_weights=lambda folder: source.weights(
                *(replace(settings, model=folder), self.config, shard, self._device, no_progress)
            ),
            build=lambda weights: build_model(self._part, weights, self._assembly),
            digests=digests if shard.rank == 0 else lambda folder: NO_DIGESTS,
            available=lambda: available_bytes() // shard.ranks,
            keeps_tower=partial(keeps_tower, settings, self._tower),
            is_sound=has_finite_weights,
        )

    def weights(self, send: SendToLeader) -> FollowerWeights:
        return FollowerWeights(self.staging, send)

    def check(self) -> None:
        assert self._parts.collectives is not None
        self._parts.collectives.check()

    def join(self, join: Join, report: Report) -> Runner:
        """Connect to the other ranks and build the runner. Called on a follower."""
        # Only the leader has grammars.
        parts = self.meet(join, report)
        sizes = runner_sizes(self._settings, self._role, parts)
        if parts.tower is not None and parts.rows is not None:
            self._pictures = FollowerRows(parts.tower, parts.rows, self._shard.rank)
        hands_on = self._role is Role.PREFILL
        return build_runner(parts, sizes, hands_on=hands_on, rows=self._pictures)

    def pictures(self) -> FollowerRows | None:
        return self._pictures
