"""From parts to a running engine, by role: cache, runner, drafts, tiers.

A GPU gets a runner with CUDA graphs. Its module is imported only then, so a machine without Triton
never needs it.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tasuki.engine.config import MOST_DRAFTS_ON_GPU, EngineConfig, EngineConfigError, Role
from tasuki.engine.engine import Compute, Engine, EngineSizes, MakeHandover, Memory
from tasuki.engine.handover.decode_side import DecodeHandover
from tasuki.engine.handover.early_start import Barriers, EarlyStart
from tasuki.engine.handover.prefill_side import PrefillHandover
from tasuki.engine.intake import PromptLimits
from tasuki.engine.messages import Targets
from tasuki.engine.parallel.leader_runner import LeaderRunner
from tasuki.engine.parallel.pictures import SharedRows
from tasuki.engine.parallel.tiers import RankCopier
from tasuki.engine.pictures.row_store import FindRows, RowStore
from tasuki.engine.roles.answers import Answers, AnswerTerms
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.roles.early_steps import EarlySteps, PrefillsBehind
from tasuki.engine.routing import PrefillSpeed
from tasuki.engine.runner.base import EventRecorder, Runner, RunnerSizes
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.runner.rows import widths
from tasuki.engine.scheduling.checkpoints import read_tool_call_ids
from tasuki.engine.scheduling.picture_encoder import PictureEncoder, PictureWork
from tasuki.engine.scheduling.pictures_elsewhere import Pictures, PicturesElsewhere
from tasuki.engine.speculation.draft_limit import DraftLimit, FixedLimit, MeasuredLimit
from tasuki.engine.speculation.speculation import Speculation
from tasuki.engine.tiers.disk.kept_folder import digests_of_weights
from tasuki.engine.tiers.disk.kept_index import restore
from tasuki.engine.tiers.host_memory import available_bytes
from tasuki.engine.tiers.lower_tiers import LowerTiers, MakeTiers
from tasuki.engine.tiers.tier import Copier, LowerTier
from tasuki.engine.tiers.tier_copiers import tier_copiers
from tasuki.engine.updates.staging import Stager, Staging, answers_soundly
from tasuki.model.attention_split import AttentionSplit
from tasuki.model.families.loading import build_model, load_weights
from tasuki.model.families.registry import family_of
from tasuki.model.protocol import GpuModel, Model
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import EncodeFlops
from tasuki.model.weights.layers import Weights
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.sending.sender import Sender
from tasuki.utils.logs import Progress, no_progress
from tasuki.utils.signatures import Notice

from .memory_plan import max_batch
from .parts import EngineParts, asked_model, assembly_of
from .towers import keeps_tower

log = logging.getLogger(__name__)


def build_cache(config: EngineConfig, parts: EngineParts) -> HybridPrefixCache:
    """Make the prefix cache over the arena's slabs (fixed-size parts) owned by the engine."""
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
    """Make an engine to compute prompts and answers itself. REQUIRES: the cache is over the arena
    of the parts. progress: shows the warm-up, if there is one."""

    def side(context: HandoverContext) -> Answers:
        return Answers(context, answer_terms(config, parts))

    return _assemble(config, Role.FUSED, parts, cache, side, progress)


def build_prefill_engine(
    config: EngineConfig,
    parts: EngineParts,
    cache: HybridPrefixCache,
    sender: Sender,
    progress: Progress = no_progress,
) -> Engine:
    """Make an engine to hand prompts to decode nodes. REQUIRES: the cache is over the arena of the
    parts; the sender counts the parts' steps. progress: shows the warm-up."""
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
    """Make an engine to decode answers, with an option to send prompts to prefill nodes. REQUIRES:
    the cache and `early` (early decode steps) use the arena of the parts. progress: shows the
    warm-up."""

    def side(context: HandoverContext) -> DecodeHandover:
        return DecodeHandover(context, answer_terms(config, parts), early)

    return _assemble(config, Role.DECODE, parts, cache, side, progress)


def answer_terms(config: EngineConfig, parts: EngineParts) -> AnswerTerms:
    """Return an engine's settings for answers: end tokens, tool calls, time limits, drafts. Raises
    EngineConfigError."""
    return AnswerTerms(
        tuple(parts.model_config.eos_ids),
        read_tool_call_ids(Path(config.model), family_of(parts.model_config).call_token),
        Targets(config.ttft_target, config.max_itl_seconds),
        build_speculation(config, parts),
    )


def build_speculation(config: EngineConfig, parts: EngineParts) -> Speculation:
    """Return the choice of draft sources for answers: the parts' own if they have one, else by the
    config. On a GPU, `auto` leaves out drafts forced by grammars. Raises EngineConfigError."""
    on_gpu = parts.arena.bytes.device.type != "cpu"
    # Not measured on a GPU yet, so `auto` leaves it out there.
    forced = config.speculate != "auto" or not on_gpu
    config = _drafting(config, parts)
    most = most_drafts(config, parts)
    if parts.speculation is not None:
        return parts.speculation
    return Speculation(
        most,
        from_tree=config.drafts_from_tree,
        by_layer=config.drafts_by_layer,
        by_block=config.drafts_by_block,
        grammars=parts.grammars if forced else None,
    )


def _drafting(config: EngineConfig, parts: EngineParts) -> EngineConfig:
    on_gpu = parts.runner is None and parts.arena.bytes.device.type != "cpu"
    return config.drafting(parts.layout.draft_layers, on_gpu=on_gpu)


def most_drafts(config: EngineConfig, parts: EngineParts) -> int:
    """Return the largest number of drafts of an answer in a step. Raises EngineConfigError if the
    runner cannot verify the configured drafts or so many, the draft layer is missing, or the block
    drafter proposes fewer."""
    config = _drafting(config, parts)
    if config.drafts_by_layer and not parts.layout.draft_layers:
        raise EngineConfigError(
            f"speculate is {config.speculate}, and the arena has no draft layer: give a checkpoint "
            "with mtp.*, and --draft-layer auto"
        )
    shape = parts.model_config.drafter
    if config.drafts_by_block and shape is not None and config.draft_tokens > shape.most_drafts:
        raise EngineConfigError(
            f"draft_tokens is {config.draft_tokens}, and the drafter proposes {shape.most_drafts} "
            "at a time: give as many or fewer"
        )
    if parts.runner is None and parts.arena.bytes.device.type == "cpu":
        return 0 if config.speculate == "off" else config.draft_tokens
    most = config.drafts_on_gpu
    if most and parts.runner is not None:
        raise EngineConfigError(
            f"speculate is {config.speculate}, and this runner verifies no drafts: leave it out"
        )
    if most and config.divided_keys is AttentionSplit.SPANS:
        # The kernel for rows of bf16 keys with drafts failed on an H200.
        raise EngineConfigError(
            f"attention_split is spans, and speculate is {config.speculate}: spans take no drafts; "
            "give --speculate off, or --attention-split shares"
        )
    if most > MOST_DRAFTS_ON_GPU:
        raise EngineConfigError(
            f"draft_tokens is {most}, and a GPU verifies at most {MOST_DRAFTS_ON_GPU} at a time: "
            "give as many or fewer"
        )
    return most


def draft_limit(config: EngineConfig, most: int, *, on_gpu: bool) -> DraftLimit:
    """Return the limit of drafts: fixed if `draft_count` is "most" or `most` is 0, else measured.
    most: largest number of drafts of an answer in a step."""
    if config.draft_count == "most" or not most:
        return FixedLimit(most)
    return MeasuredLimit(widths(most) if on_gpu else range(2, most + 2))


def runner_sizes(config: EngineConfig, role: Role, parts: EngineParts) -> RunnerSizes:
    """Return the sizes of the runner's buffers, equal on all ranks of a node; a prefill node has no
    drafts. Raises EngineConfigError."""
    on_gpu = parts.arena.bytes.device.type != "cpu"
    batch = max_batch(config, parts.layout, role, parts.arena.slabs, on_gpu=on_gpu)
    # A prefill node has no answers.
    drafts = 0 if role is Role.PREFILL else most_drafts(config, parts)
    guesses = drafts if config.drafts_by_layer else 0
    return RunnerSizes(batch, drafts, guesses, config.divided_keys)


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
    pictures = build_pictures(config, parts)
    shape = None if pictures is None else pictures.shape
    limits = PromptLimits(model.max_position, model.vocab, role.working_slots, shape)
    on_gpu = arena.bytes.device.type != "cpu"
    sizes = runner_sizes(config, role, parts)
    if on_gpu:
        size = arena.bytes.nbytes // 2**20
        log.info("an arena of %d MiB, and up to %d requests in a forward", size, sizes.batch)
    rows = pictures.store if isinstance(pictures, PictureEncoder) else None
    runner = build_runner(parts, sizes, hands_on=role is Role.PREFILL, progress=progress, rows=rows)
    wire = parts.wire or parts.layout
    per_token = None if role is Role.PREFILL else config.max_itl_seconds
    drafts = parts.drafts or draft_limit(config, sizes.drafts, on_gpu=on_gpu)
    return Engine(
        config,
        Memory(cache, build_tiers(parts), build_behind(config, parts, cache)),
        Compute(runner, parts.grammars, drafts, pictures, build_staging(config, parts), role),
        EngineSizes(
            *(limits, sizes.batch, wire, parts.model.weights.formats, per_token),
            parts.model_config.ids_before,
        ),
        side,
        parts.clock,
    )


def build_staging(config: EngineConfig, parts: EngineParts) -> Stager | str:
    """Return the stager of the engine's new weights; the reason if it takes none, as yet."""
    if parts.arena.bytes.device.type != "cpu":
        return "weights change on a CPU only, as yet: restart this node"
    if config.drafter is not None:
        return "weights change without a block drafter only, as yet: restart this node"
    if parts.staging is not None:
        return parts.staging
    model, dtype = parts.model_config, parts.model.weights.dtype

    def build(weights: Weights) -> Model:
        return build_model(model, weights, assembly_of(config, model, weights, parts.sight))

    return Staging(
        model=parts.model,
        config=model,
        read_config=lambda folder: asked_model(replace(config, model=folder)),
        read_weights=lambda folder: load_weights(folder, model, dtype),
        build=build,
        digests=lambda folder: digests_of_weights(folder, config.disk_cache),
        available=available_bytes,
        keeps_tower=partial(keeps_tower, config, parts.tower),
        is_sound=partial(answers_soundly, layout=parts.layout),
    )


def build_pictures(config: EngineConfig, parts: EngineParts) -> Pictures | None:
    """Return the encoder of pictures, or its stand-in without a tower; None if prompts have none.
    Raises EngineConfigError if the budget of rows is smaller than the largest picture."""
    tower, sight = parts.tower, parts.sight
    if tower is None:
        return (
            None if sight is None else PicturesElsewhere(sight, picture_work(parts, sight.config))
        )
    row_bytes = tower.config.out_hidden * tower.weights.dtype.itemsize
    shared = None
    if parts.ranks is not None and parts.rows is not None:
        shared = SharedRows(tower, parts.ranks, parts.rows)
    store = RowStore(config.picture_rows_mib * 2**20, row_bytes, shared)
    most = tower.rules.most // tower.rules.factor**2
    if store.most_tokens < most:
        needed = -(-most * row_bytes // 2**20)
        raise EngineConfigError(
            f"picture_rows_mib is {config.picture_rows_mib}, and the largest picture of {most} "
            f"tokens takes {needed} MiB: give at least that, or --vision off"
        )
    work = picture_work(parts, tower.config)
    return PictureEncoder(tower, store, rows=shared, work=work)


def picture_work(parts: EngineParts, vision: VisionConfig) -> PictureWork:
    """Return the work of a picture in the tower, in tokens of the language model."""
    encode = EncodeFlops.of(vision)
    token = parts.flops.linear
    return lambda picture: encode.picture(picture.grid.patches) / token


def build_tiers(parts: EngineParts) -> MakeTiers | None:
    """Return a maker of the tiers below the arena; None without host memory."""
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
    """Return the computation of prompt tokens during loads. Return None without host memory, or
    with several ranks: they would have to compute together."""
    if parts.host is None or parts.ranks is not None:
        return None
    model, prepare = parts.model.beside()
    # No callback at a step's end is needed: the loop waits for copies, a millisecond at most, and
    # then checks.
    steps = EarlySteps(model, parts.arena, parts.grammars, prepare=prepare)
    return PrefillsBehind(cache, steps, config.prefill_chunk_tokens)


def build_early_start(parts: EngineParts, barriers: Barriers, on_end: Notice) -> EarlyStart:
    """Make the early start of answers: decode steps begun before their prompt has arrived.
    barriers: returns a transfer's layer barrier. on_end: called after each step, on the steps'
    thread; must return without waiting."""
    model, prepare = parts.model.beside()
    steps = EarlySteps(model, parts.arena, parts.grammars, on_end, prepare)
    return EarlyStart(steps, barriers)


def build_runner(
    parts: EngineParts,
    sizes: RunnerSizes,
    *,
    hands_on: bool,
    progress: Progress = no_progress,
    rows: FindRows | None = None,
) -> Runner:
    """Make the runner, by the parts' own maker if they have one. On a GPU this captures the decode
    graphs. hands_on: True if steps are counted, because the engine hands prompts over. rows: stored
    rows of pictures; None: prompts have none."""
    if parts.runner is not None:
        return parts.runner(parts, hands_on)
    runner = _runner_here(parts, sizes, hands_on, progress, rows)
    if parts.ranks is None:
        return runner
    # Ranks do nothing together after this until the first plan.
    parts.ranks.joined()
    return LeaderRunner(runner, parts.ranks, parts.collectives)


def _runner_here(
    parts: EngineParts,
    sizes: RunnerSizes,
    hands_on: bool,
    progress: Progress,
    rows: FindRows | None,
) -> Runner:
    """Make the runner of this rank alone."""
    if parts.arena.bytes.device.type == "cpu":
        return CpuRunner(
            parts.model, parts.arena, parts.steps, parts.grammars, parts.together, rows
        )
    from tasuki.engine.runner.cuda_runner import CudaRunner, LayerEvents

    assert isinstance(parts.model, GpuModel)
    return CudaRunner(
        parts.model,
        parts.arena,
        LayerEvents(parts.steps, len(parts.layout.layers)) if hands_on else None,
        parts.grammars,
        sizes,
        max_position=parts.model_config.max_position,
        progress=progress,
        together=parts.together,
        pictures=rows,
    )
