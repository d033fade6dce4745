"""From a config to a running engine: weights, arena, cache, runner.

The device is chosen here, once: on a GPU the model gets Triton's operators and a runner of graphs.
Only then are those modules imported, so that a machine without Triton never needs them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tasuki.engine.config import MOST_DRAFTS_ON_GPU, EngineConfig, EngineConfigError, Role
from tasuki.engine.engine import Compute, Engine, EngineSizes, MakeHandover, Memory
from tasuki.engine.handover.answers import Answers
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.decode_side import DecodeHandover
from tasuki.engine.handover.early_steps import Barriers, EarlyStart, EarlySteps, PrefillsBehind
from tasuki.engine.handover.prefill_side import PrefillHandover
from tasuki.engine.intake import PromptLimits
from tasuki.engine.messages import Targets
from tasuki.engine.parallel.collectives import Collectives
from tasuki.engine.parallel.leader_runner import LeaderRunner
from tasuki.engine.parallel.ranks import Ranks
from tasuki.engine.parallel.shared_arenas import SharedArenas
from tasuki.engine.parallel.tiers import RankCopier
from tasuki.engine.routing import PrefillSpeed
from tasuki.engine.runner.base import EventRecorder, Runner, RunnerSizes
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.runner.logits import DrawnTogether
from tasuki.engine.runner.rows import widths
from tasuki.engine.scheduling.checkpoints import read_tool_call_ids
from tasuki.engine.speculation.draft_limit import DraftLimit, FixedLimit, MeasuredLimit
from tasuki.engine.speculation.speculation import Speculation
from tasuki.engine.tiers.digests import DigestKind
from tasuki.engine.tiers.disk.disk_memory import DiskMemory, disk_memory
from tasuki.engine.tiers.disk.kept_folder import digest_of_weights
from tasuki.engine.tiers.disk.kept_index import restore
from tasuki.engine.tiers.host_memory import host_arena
from tasuki.engine.tiers.lower_tiers import Copier, LowerTier, LowerTiers, MakeTiers
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory, remote_memory
from tasuki.engine.tiers.tier_copiers import tier_copiers
from tasuki.engine.tiers.tier_prices import (
    CPU_LINK,
    DISK_LINK,
    GPU_DISK_LINK,
    GPU_LINK,
    GPU_REMOTE_LINK,
    REMOTE_LINK,
    TierPrices,
)
from tasuki.model.backends.base import Backend, Gather, Reduce, one_rank
from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import ModelConfig
from tasuki.model.costs import PrefillFlops
from tasuki.model.draft_layer import DraftHead, draft_ids
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.known_models import with_draft_layer
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.layers import ModelWeights
from tasuki.model.weights.safetensors_folder import check_kernels, load_weights, multiplies_fp8
from tasuki.pycache._cpp_cache import TierConfig
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import FP8_ROWS, CacheLayout
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.descriptors import UnitSizes
from tasuki.transfer.windows.window import StepCounter
from tasuki.utils.logs import Progress, no_progress
from tasuki.utils.signatures import Clock, Notice

from .memory_plan import arena_slabs, max_batch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineParts:
    """What must exist before an engine: a sender or receiver is built over the same arena.

    slabs: of the arena, those that the engine's cache owns, from the first; None: all. wire: how
    long what travels is, where that is not as long as it lies. runner: makes what runs the plans;
    None: by the arena's device. speculation: what is drafted of answers, and drafts: how many of
    them a step has; None: as the config says. host: below the arena, where a tier is; disk: below
    that; remote: below both. copiers: between them; None: a thread a tier. grammars: over the
    model's vocabulary. clock: seconds, of the time that requests wait. ranks: the other ranks that
    share the model, and together: how tokens are drawn with them; None: there are none. shared:
    what all their arenas lie in, of a node that hands over. collectives: of this rank.
    """

    model_config: ModelConfig
    model: Qwen35Model
    arena: Arena
    steps: StepCounter
    slabs: int | None = None
    wire: UnitSizes | None = None
    runner: "Callable[[EngineParts, bool], Runner] | None" = None
    speculation: Speculation | None = None
    drafts: DraftLimit | None = None
    copiers: "Callable[[EngineParts], Sequence[Copier]] | None" = None
    host: Arena | None = None
    disk: DiskMemory | None = None
    remote: RemoteMemory | None = None
    grammars: GrammarCompiler = field(default_factory=lambda: GrammarCompiler(None))
    clock: Clock = time.monotonic
    ranks: Ranks | None = None
    together: DrawnTogether | None = None
    shared: SharedArenas | None = None
    collectives: Collectives | None = None

    @property
    def sent_behind(self) -> StepCounter | None:
        """What a sender waits for where there are ranks: all of them."""
        return None if self.shared is None else self.shared.agreed.steps

    @property
    def layout(self) -> CacheLayout:
        return self.arena.layout

    @property
    def attention_cost(self) -> float:
        """FLOPs of a token for each token before it, as a part of its other FLOPs."""
        flops = PrefillFlops.for_model(self.model_config)
        return flops.quadratic / flops.linear

    @property
    def tier_prices(self) -> list[TierPrices]:
        """Of loads from each tier."""
        flops = PrefillFlops.for_model(self.model_config)
        if self.arena.bytes.device.type == "cpu":
            host, disk, remote = CPU_LINK, DISK_LINK, REMOTE_LINK
        else:
            host, disk, remote = GPU_LINK, GPU_DISK_LINK, GPU_REMOTE_LINK
        links = [host]
        links += [] if self.disk is None else [disk]
        links += [] if self.remote is None else [remote]
        return [TierPrices.of(self.layout, flops.linear, link) for link in links]

    @property
    def tiers(self) -> list[TierConfig]:
        """Below the arena, as the tree knows them."""
        if self.host is None:
            return []
        prices = self.tier_prices
        found = [prices[0].config(self.host.slabs)]
        if self.disk is not None:
            slabs, budget = self.disk.file.slabs, self.disk.pages_a_second
            # A restart finds what the disk has.
            found.append(prices[1].config(slabs, budget, "ahead"))
        if self.remote is not None:
            # Others find it, whatever becomes of this node.
            slabs, budget = self.remote.slabs, self.remote.pages_a_second
            found.append(prices[-1].config(slabs, budget, "ahead"))
        return found


BuildParts = Callable[[EngineConfig, Progress, Role], EngineParts]
"""Where a daemon's model, arena and runner come from. Raises as build_parts()."""


def build_parts(
    config: EngineConfig, progress: Progress = no_progress, role: Role = Role.FUSED
) -> EngineParts:
    """Load the model, layer by layer, and allocate the arena, of one rank. role: of the engine to
    come. Raises the model's typed errors and EngineConfigError."""
    if config.tensor_parallel > 1:
        raise EngineConfigError(
            f"tensor_parallel is {config.tensor_parallel}, and this command loads one rank: give "
            "--tensor-parallel 1, or serve the model with `tasuki serve`"
        )
    torch.set_num_threads(config.threads)
    if not config.model:
        raise EngineConfigError(
            "model is not set: give the folder of a checkpoint, or its name on huggingface.co, "
            "with --model"
        )
    device = torch_device(config)
    use_device(device)
    check_kernels(config.model, device)
    model_config = asked_model(config)
    arena = build_arena(config, model_config, device, role)
    host = host_arena(config, arena.layout)
    dtype = getattr(torch, config.compute_dtype)
    weights = load_weights(config.model, model_config, dtype, device, progress)
    contract = partial(_contract, config, model_config, weights, arena.layout)
    disk = None if host is None else disk_memory(config, arena.layout, contract)
    remote = None if host is None else remote_memory(config, arena.layout, contract)
    vocabulary = Vocabulary.load(Path(config.model), model_config.vocab, model_config.eos_ids)
    return EngineParts(
        model_config,
        build_model(model_config, weights, _drafted(config, model_config)),
        arena,
        StepCounter(),
        host=host,
        disk=disk,
        remote=remote,
        grammars=GrammarCompiler(vocabulary),
    )


def _contract(
    config: EngineConfig, model: ModelConfig, weights: ModelWeights, layout: CacheLayout
) -> dict[str, str]:
    digest = digest_of_weights(config.model, config.disk_cache)
    return kept_contract(digest, model, weights, layout, DigestKind.of(torch_device(config)))


def kept_contract(
    digest: str, model: ModelConfig, weights: ModelWeights, layout: CacheLayout, kind: DigestKind
) -> dict[str, str]:
    """What two nodes must have equal, one after the other, to mean the same bytes and to compare
    the same digests of them. digest: of the weights. kind: of the digests of pages and slots."""
    whole = Contract(digest, layout, constants=model.constants, weights_format=weights.formats)
    return {**whole.flat(), "page_digests": kind.value}


def asked_model(config: EngineConfig) -> ModelConfig:
    """Of the checkpoint folder, with the context and the draft layer that the config asks for.
    Raises ModelConfigError, WeightsError, EngineConfigError."""
    model = with_context(ModelConfig.load(config.model), config)
    return with_draft_layer(model, config.model, config.draft_layer)


def with_context(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """The model with as long a context as the config asks for. Raises EngineConfigError where that
    is longer than the model's."""
    asked = config.max_model_len
    if asked is None:
        return model
    if asked > model.max_position:
        raise EngineConfigError(
            f"max_model_len {asked} is more than the {model.max_position} tokens that the model "
            "was made for: give at most that, or stretch it by rope_parameters in config.json"
        )
    return replace(model, max_position=asked)


def torch_device(config: EngineConfig) -> torch.device:
    """The device that the config names. Raises EngineConfigError where there is none, or it cannot
    read what its pages are to hold."""
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineConfigError(
            "device is cuda, but PyTorch sees no GPU here: "
            "install a CUDA build of torch, or give --device cpu"
        )
    if device.type == "cuda" and config.stored_kv == FP8_ROWS and not multiplies_fp8(device):
        raise EngineConfigError(
            f"kv_dtype is fp8, and {torch.cuda.get_device_name(device)} has no instructions for "
            "e4m3, which GPUs have from compute capability 8.9 on: leave --kv-dtype out, or give "
            "--device cpu"
        )
    return device


def use_device(device: torch.device) -> None:
    """Let streams, graphs and kernels that this thread makes from now on be this GPU's."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def build_arena(
    config: EngineConfig, model: ModelConfig, device: torch.device, role: Role = Role.FUSED
) -> Arena:
    """role: of the engine to come. REQUIRES: nothing of it is on the device yet. Raises
    EngineConfigError where arena_mib is too little or too much."""
    # What the context has taken already the plan counts again, which leaves some memory to spare.
    free = None if device.type == "cpu" else config.usable_of(*torch.cuda.mem_get_info(device))
    slabs = arena_slabs(config, model, role, free)
    layout = model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)
    try:
        return Arena(layout, slabs, device)
    except RuntimeError as error:
        raise EngineConfigError(
            f"arena_mib {config.arena_mib} cannot be allocated: give less, or free memory"
        ) from error


def _drafted(config: EngineConfig, model: ModelConfig) -> Tensor | None:
    """Ids of the tokens that the draft layer may propose, where it is to; None: all. Raises
    ModelConfigError."""
    on_gpu = torch_device(config).type != "cpu"
    if not model.draft_layers or not config.drafting(1, on_gpu=on_gpu).drafts_by_layer:
        return None
    return draft_ids(Path(config.model), model.vocab, model.eos_ids)


def build_model(
    config: ModelConfig,
    weights: ModelWeights,
    drafted: Tensor | None = None,
    reduce: Reduce = one_rank,
    gather: Gather = one_rank,
) -> Qwen35Model:
    """With the operators of the device that the weights are on. drafted: ids of the tokens that
    drafts may be; None: all. reduce, gather: of the ranks, where config and weights are one's."""
    device = weights.embedding.device
    drafts = DraftHead.of(weights.head, drafted)
    backend: Backend = TorchBackend(config, reduce)
    if device.type != "cpu":
        from tasuki.model.backends.triton_backend import TritonBackend

        backend = TritonBackend(config, weights.dtype, device, reduce)
    return Qwen35Model(config, weights, backend, gather, drafts)


def build_cache(config: EngineConfig, parts: EngineParts) -> HybridPrefixCache:
    """Over those slabs of the arena that are the engine's."""
    return HybridPrefixCache(
        parts.arena,
        policy=config.cache_policy,
        attention_cost=parts.attention_cost,
        slabs=parts.slabs,
        tiers=parts.tiers,
    )


def build_fused_engine(
    config: EngineConfig,
    parts: EngineParts,
    cache: HybridPrefixCache,
    progress: Progress = no_progress,
) -> Engine:
    """An engine that answers by itself. REQUIRES: the cache is over the arena of the parts.
    progress: of the warm-up, where there is one."""
    answers = partial(build_answers, config, parts)
    return _assemble(config, Role.FUSED, parts, cache, answers, progress)


def build_prefill_engine(
    config: EngineConfig,
    parts: EngineParts,
    cache: HybridPrefixCache,
    sender: Sender,
    progress: Progress = no_progress,
) -> Engine:
    """An engine that hands prompts to decode nodes. REQUIRES: the cache is over the arena of the
    parts; the sender counts their steps."""
    speed = PrefillSpeed(parts.attention_cost, config.prefill_chunk_tokens)
    side = partial(PrefillHandover, sender=sender, speed=speed)
    return _assemble(config, Role.PREFILL, parts, cache, side, progress)


def build_decode_engine(
    config: EngineConfig,
    parts: EngineParts,
    cache: HybridPrefixCache,
    early: EarlyStart,
    progress: Progress = no_progress,
) -> Engine:
    """An engine that may have prompts computed by prefill nodes. REQUIRES: cache and early are over
    the arena of the parts."""

    def side(context: HandoverContext) -> DecodeHandover:
        return DecodeHandover(context, build_answers(config, parts, context), early)

    return _assemble(config, Role.DECODE, parts, cache, side, progress)


def build_answers(config: EngineConfig, parts: EngineParts, context: HandoverContext) -> Answers:
    tool_call_ids = read_tool_call_ids(Path(config.model))
    return Answers(
        context,
        parts.model_config.eos_ids,
        tool_call_ids,
        Targets(config.ttft_target, config.max_itl_seconds),
        build_speculation(config, parts),
    )


def build_speculation(config: EngineConfig, parts: EngineParts) -> Speculation:
    """What is drafted of the answers. Raises EngineConfigError."""
    on_gpu = parts.arena.bytes.device.type != "cpu"
    # No GPU has shown it yet, so it is left out where nobody asked for drafts.
    forced = config.speculate != "auto" or not on_gpu
    config = _drafting(config, parts)
    most = most_drafts(config, parts)
    if parts.speculation is not None:
        return parts.speculation
    return Speculation(
        most,
        from_tree=config.drafts_from_tree,
        by_layer=config.drafts_by_layer,
        grammars=parts.grammars if forced else None,
    )


def _drafting(config: EngineConfig, parts: EngineParts) -> EngineConfig:
    on_gpu = parts.runner is None and parts.arena.bytes.device.type != "cpu"
    return config.drafting(parts.layout.draft_layers, on_gpu=on_gpu)


def most_drafts(config: EngineConfig, parts: EngineParts) -> int:
    """Of a step and answer. Raises EngineConfigError where the config asks for drafts that cannot
    be verified, or by a layer that there is not."""
    config = _drafting(config, parts)
    if config.drafts_by_layer and not parts.layout.draft_layers:
        raise EngineConfigError(
            f"speculate is {config.speculate}, and the arena has no draft layer: give a checkpoint "
            "with mtp.*, and --draft-layer auto"
        )
    if parts.runner is None and parts.arena.bytes.device.type == "cpu":
        return 0 if config.speculate == "off" else config.draft_tokens
    most = config.drafts_on_gpu
    if most and parts.runner is not None:
        raise EngineConfigError(
            f"speculate is {config.speculate}, and this runner verifies no drafts: leave it out"
        )
    if most > MOST_DRAFTS_ON_GPU:
        raise EngineConfigError(
            f"draft_tokens is {most}, and a GPU verifies at most {MOST_DRAFTS_ON_GPU} at a time: "
            "give as many or fewer"
        )
    return most


def draft_limit(config: EngineConfig, most: int, *, on_gpu: bool) -> DraftLimit:
    """most: drafts of a step and answer."""
    if config.draft_count == "most" or not most:
        return FixedLimit(most)
    return MeasuredLimit(widths(most) if on_gpu else range(2, most + 2))


def runner_sizes(config: EngineConfig, role: Role, parts: EngineParts) -> RunnerSizes:
    """Equal on all ranks of a node. Raises EngineConfigError."""
    on_gpu = parts.arena.bytes.device.type != "cpu"
    batch = max_batch(config, parts.layout, role, parts.arena.slabs, on_gpu=on_gpu)
    # A prefill node has no answers.
    drafts = 0 if role is Role.PREFILL else most_drafts(config, parts)
    return RunnerSizes(batch, drafts, drafts if config.drafts_by_layer else 0)


def _assemble(
    config: EngineConfig,
    role: Role,
    parts: EngineParts,
    cache: HybridPrefixCache,
    side: MakeHandover,
    progress: Progress,
) -> Engine:
    config = _drafting(config, parts)
    model, arena = parts.model_config, parts.arena
    limits = PromptLimits(model.max_position, model.vocab, role.working_slots)
    on_gpu = arena.bytes.device.type != "cpu"
    sizes = runner_sizes(config, role, parts)
    if on_gpu:
        size = arena.bytes.nbytes // 2**20
        log.info("an arena of %d MiB, and up to %d requests in a forward", size, sizes.batch)
    runner = build_runner(parts, sizes, hands_on=role is Role.PREFILL, progress=progress)
    wire = parts.wire or parts.layout
    per_token = None if role is Role.PREFILL else config.max_itl_seconds
    drafts = parts.drafts or draft_limit(config, sizes.drafts, on_gpu=on_gpu)
    return Engine(
        config,
        Memory(cache, build_tiers(parts), build_behind(config, parts, cache)),
        Compute(runner, parts.grammars, drafts),
        EngineSizes(limits, sizes.batch, wire, parts.model.weights.formats, per_token),
        side,
        parts.clock,
    )


def build_tiers(parts: EngineParts) -> MakeTiers | None:
    """None where the parts have none."""
    if parts.host is None:
        return None
    disk = parts.disk
    if parts.copiers is not None:
        copiers: Sequence[Copier] = parts.copiers(parts)
    else:
        copiers = tier_copiers(parts.arena, parts.host, disk, parts.remote)
        if parts.ranks is not None:
            copiers = [RankCopier(own, tier, parts.ranks) for tier, own in enumerate(copiers)]
    prices = parts.tier_prices
    tiers = [LowerTier("host", copiers[0], prices[0])]
    if disk is not None:
        tiers.append(LowerTier("disk", copiers[1], prices[1], disk=disk))
    if parts.remote is not None:
        tiers.append(LowerTier("remote", copiers[-1], prices[-1], remote=parts.remote))

    def make(cache: HybridPrefixCache, recorder: EventRecorder) -> LowerTiers:
        if disk is not None:
            others = () if parts.ranks is None else parts.ranks.kept
            restore(cache, 1, disk.index, others)
        return LowerTiers(cache, recorder, tiers, parts.clock)

    return make


def build_behind(
    config: EngineConfig, parts: EngineParts, cache: HybridPrefixCache
) -> PrefillsBehind | None:
    """None where nothing is loaded, or several ranks would have to compute behind it together."""
    if parts.host is None or parts.ranks is not None:
        return None
    model, prepare = _model_beside(parts)
    # The loop waits for copies, a millisecond at most, and looks by itself.
    steps = EarlySteps(model, parts.arena, lambda: None, prepare)
    return PrefillsBehind(cache, steps, parts.grammars, config.prefill_chunk_tokens)


def _model_beside(parts: EngineParts) -> tuple[Qwen35Model, Notice]:
    """For forwards beside the engine's, of the same weights, and what is to be done on their
    thread before the first."""
    model = parts.model
    if parts.arena.bytes.device.type == "cpu":
        return model, lambda: None
    from tasuki.model.backends.triton_backend import TritonBackend

    assert isinstance(model.backend, TritonBackend)
    # Of its own: forwards of one back end share streams.
    backend = model.backend.beside()
    return Qwen35Model(model.config, model.weights, backend), backend.prepare


def build_early_start(parts: EngineParts, barriers: Barriers, on_end: Notice) -> EarlyStart:
    """on_end: called on the thread of the steps after each; must return at once."""
    model, prepare = _model_beside(parts)
    steps = EarlySteps(model, parts.arena, on_end, prepare)
    return EarlyStart(steps, barriers, parts.grammars)


def build_runner(
    parts: EngineParts,
    sizes: RunnerSizes,
    *,
    hands_on: bool,
    progress: Progress = no_progress,
) -> Runner:
    """On a GPU this captures the decode graphs. hands_on: whether anybody counts its steps."""
    if parts.runner is not None:
        return parts.runner(parts, hands_on)
    runner = _runner_here(parts, sizes, hands_on, progress)
    if parts.ranks is None:
        return runner
    # The last thing that ranks do together before a plan.
    parts.ranks.joined()
    return LeaderRunner(runner, parts.ranks, parts.collectives)


def _runner_here(
    parts: EngineParts, sizes: RunnerSizes, hands_on: bool, progress: Progress
) -> Runner:
    """Of this rank."""
    if parts.arena.bytes.device.type == "cpu":
        return CpuRunner(parts.model, parts.arena, parts.steps, parts.grammars, parts.together)
    from tasuki.engine.runner.cuda_runner import CudaRunner, LayerEvents

    return CudaRunner(
        parts.model,
        parts.arena,
        LayerEvents(parts.steps, len(parts.layout.layer_kinds)) if hands_on else None,
        parts.grammars,
        sizes,
        max_position=parts.model_config.max_position,
        progress=progress,
        together=parts.together,
    )
