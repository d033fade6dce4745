"""The parts of an engine: weights, model, arena, memory below it, and the data plane for transfers
between nodes.

The device is chosen here, once: on a GPU the model gets Triton's operators. Their modules are
imported only then, so a machine without Triton never needs them.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.parallel.collectives import Collectives, GlooCollectives
from tasuki.engine.parallel.ranks import Ranks
from tasuki.engine.parallel.shared_arenas import SharedArenas
from tasuki.engine.pictures.placed import Sight
from tasuki.engine.runner.base import Runner
from tasuki.engine.runner.logits import SampledTogether
from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.speculation.speculation import Speculation
from tasuki.engine.tiers.digests import DigestKind
from tasuki.engine.tiers.disk.disk_memory import DiskMemory, disk_memory
from tasuki.engine.tiers.disk.kept_folder import digest_of_weights, digests_of_weights
from tasuki.engine.tiers.host_memory import host_arena
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory, remote_memory
from tasuki.engine.tiers.tier import (
    CPU_LINK,
    DISK_LINK,
    GPU_DISK_LINK,
    GPU_LINK,
    GPU_REMOTE_LINK,
    REMOTE_LINK,
    Copier,
    TierPrices,
)
from tasuki.engine.updates.staging import Stager
from tasuki.model.config import ModelConfig
from tasuki.model.costs import PrefillFlops
from tasuki.model.drafter.model import beside_drafter
from tasuki.model.drafter.reader import with_drafter
from tasuki.model.drafts import DraftHead, draft_ids
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import build_model, load_weights, read_tables
from tasuki.model.families.registry import family_of, load_config, with_draft_layer
from tasuki.model.forward import BF16_STEPS, FP8_STEPS, PhaseActivations
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.protocol import Model
from tasuki.model.vision.tower import VisionTower
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.safetensors_folder import check_kernels, multiplies_fp8
from tasuki.pycache._cpp_cache import TierConfig
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import FP8_ROWS
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.chunks.descriptors import UnitSizes
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.protocol.contract import BF16_NAME, NOT_USED, Contract
from tasuki.transfer.settings import WireSettings
from tasuki.transfer.transports.base import Transport
from tasuki.transfer.transports.factory import build_transport
from tasuki.utils.logs import Progress, no_progress, progress_bar
from tasuki.utils.signatures import Clock

from .memory_plan import arena_slabs, layout_of
from .towers import build_sight, build_tower

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineParts:
    """The parts made before an engine. A sender or receiver of transfers is built over the same
    arena.

    slabs: number of the arena's first slabs owned by the engine's cache; None: all. wire: byte
    lengths of the transferred units, if they differ from the arena's. runner: makes the runner of
    the plans; None: chosen by the arena's device. speculation: the sources of drafts; None: set by
    the config. drafts: the limit of drafts in a step; None: set by the config. host: the host
    tier's memory, if there is one. disk: the tier below host. remote: the tier below both. copiers:
    makes the tiers' copiers; None: one thread for each tier. grammars: compiler of grammars over
    the model's vocabulary. clock: seconds, for requests' waiting time. ranks: the other ranks of
    the model; None for one rank. together: sampling shared with the other ranks; None for one rank.
    shared: the memory of all ranks' arenas, on a node with hand-overs. collectives: this rank's
    exchanges with the others. tower: the vision tower; None: no rows of pictures are computed here.
    sight: reads and places pictures; None: prompts have none. rows: the exchange of pictures' rows
    with the other ranks; None for one rank. staging: stages weights on all ranks; None for one.
    """

    model_config: ModelConfig
    model: Model
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
    together: SampledTogether | None = None
    shared: SharedArenas | None = None
    collectives: Collectives | None = None
    tower: VisionTower | None = None
    sight: Sight | None = None
    rows: GlooCollectives | None = None
    staging: Stager | None = None

    @property
    def sent_behind(self) -> StepCounter | None:
        """Return the step counter of all ranks together, for a sender; None for one rank."""
        return None if self.shared is None else self.shared.agreed.steps

    @property
    def layout(self) -> CacheLayout:
        return self.arena.layout

    @property
    def flops(self) -> PrefillFlops:
        """Return the FLOPs of the model's prefill."""
        found: PrefillFlops = family_of(self.model_config).prefill_flops(self.model_config)
        return found

    @property
    def attention_cost(self) -> float:
        """Return the attention FLOPs of a token for each earlier token, divided by the token's
        other FLOPs."""
        flops = self.flops
        return flops.quadratic / flops.linear

    @property
    def tier_prices(self) -> list[TierPrices]:
        """Return the prices of loads from each tier below the arena, the nearest first. Host memory
        is always included; disk and remote store only if present."""
        flops = self.flops
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
        """Return the prefix tree's settings for the tiers below the arena, the nearest first.
        Return none without host memory."""
        if self.host is None:
            return []
        prices = self.tier_prices
        found = [prices[0].config(self.host.slabs)]
        if self.disk is not None:
            slabs, budget = self.disk.file.slabs, self.disk.pages_a_second
            # A restart finds the disk's entries.
            found.append(prices[1].config(slabs, budget, "ahead"))
        if self.remote is not None:
            # Other nodes find these entries, even after this node ends.
            slabs, budget = self.remote.slabs, self.remote.pages_a_second
            found.append(prices[-1].config(slabs, budget, "ahead"))
        return found


BuildParts = Callable[[EngineConfig, Progress, Role], EngineParts]
"""A function to make the parts of a daemon's engine. Raises the errors of build_parts()."""


def build_parts(
    config: EngineConfig, progress: Progress = no_progress, role: Role = Role.FUSED
) -> EngineParts:
    """Load the model, layer by layer, and allocate the arena, for one rank. Disk and remote store
    are opened only with host memory. role: the engine's role. Raises the model's typed errors.
    Raises EngineConfigError, also for several ranks or no model."""
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
    model_config = asked_model(config)
    device = torch_device(config)
    use_device(device)
    check_activations(config, model_config)
    check_kernels(config.model, device)
    arena = build_arena(config, model_config, device, role)
    host = host_arena(config, arena.layout)
    dtype = getattr(torch, config.compute_dtype)
    weights = load_weights(config.model, model_config, dtype, device, progress)
    if config.ngram_table == "host":
        read_tables(weights)
    sight = build_sight(config, role)
    tower = build_tower(config, device)
    contract = partial(_contract, config, model_config, weights, arena.layout, sight)
    disk = None if host is None else disk_memory(config, partial(layout_of, model_config), contract)
    remote = None if host is None else remote_memory(config, arena.layout, contract)
    vocabulary = Vocabulary.load(Path(config.model), model_config.vocab, model_config.eos_ids)
    assembly = assembly_of(config, model_config, weights, sight)
    model = build_model(model_config, weights, assembly)
    return EngineParts(
        model_config,
        beside_drafter(model, config.drafter, assembly.drafts),
        arena,
        StepCounter(),
        host=host,
        disk=disk,
        remote=remote,
        grammars=GrammarCompiler(vocabulary),
        tower=tower,
        sight=sight,
    )


def assembly_of(
    config: EngineConfig, model: ModelConfig, weights: Weights, sight: Sight | None
) -> Assembly:
    """Return a single rank's additions to its weights. sight: as in rotary_sections()."""
    return Assembly(
        DraftHead.of(weights.head, _drafted(config, model)),
        rotary_sections=rotary_sections(sight),
        activations=activations_of(config),
    )


def served_digest(config: EngineConfig) -> str:
    """Return the digest of the weights in use: the model's, and a block drafter's if there is one.
    Raises WeightsError."""
    digest = digest_of_weights(config.model, config.disk_cache)
    if config.drafter is None:
        return digest
    own = digest_of_weights(config.drafter, config.disk_cache)
    return hashlib.sha256(f"{digest} {own}".encode()).hexdigest()


def rotary_sections(sight: Sight | None) -> tuple[int, int, int] | None:
    """Return the rotary sections of prompts with pictures; None without pictures."""
    return None if sight is None else sight.config.rotary_sections


def _contract(
    config: EngineConfig,
    model: ModelConfig,
    weights: Weights,
    layout: CacheLayout,
    sight: Sight | None,
) -> dict[str, str]:
    digest = served_digest(config)
    kind = DigestKind.of(torch_device(config))
    return kept_contract(digest, model, weights, layout, kind, sight, config.rounded_steps)


def kept_contract(
    digest: str,
    model: ModelConfig,
    weights: Weights,
    layout: CacheLayout,
    kind: DigestKind,
    sight: Sight | None = None,
    step_activations: str = BF16_NAME,
) -> dict[str, str]:
    """Return the settings to compare between two nodes. If they are equal, the same bytes have the
    same meaning, and their digests can be compared. digest: digest of the weights. kind: the kind
    of page and slot digests. sight: the vision in use. Its constants count only if there is
    one, because text does not depend on them. step_activations: as in the contract."""
    whole = Contract(
        digest,
        layout,
        constants=model.constants,
        weights_format=weights.formats,
        step_activations=step_activations,
    )
    seen = {} if sight is None else {"pictures": sight.config.constants}
    return {**whole.flat(), "page_digests": kind.value, **seen}


def asked_model(config: EngineConfig) -> ModelConfig:
    """Return the config of the checkpoint folder's model, with the configured context length and
    drafters. Raises ModelConfigError, WeightsError, EngineConfigError. Raises NoKernels if its
    family has none for the configured device."""
    model = with_context(load_config(config.model), config)
    family_of(model).check_device(torch.device(config.device))
    return with_drafts(model, config)


def with_drafts(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """Return the model config with the configured draft layer or block drafter. Raises
    ModelConfigError, WeightsError."""
    own = with_draft_layer(model, config.model, config.served_draft_layer)
    return with_drafter(own, config.drafter)


def with_context(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """Return the model config with the configured context length; unchanged if none is configured.
    Raises EngineConfigError if it is longer than the model's own."""
    asked = config.max_model_len
    if asked is None:
        return model
    if asked > model.max_position:
        raise EngineConfigError(
            f"max_model_len {asked} is more than the {model.max_position} tokens that the model "
            "was made for: give at most that, or stretch it by rope_parameters in config.json"
        )
    return replace(model, max_position=asked)


def check_activations(config: EngineConfig, model: ModelConfig) -> None:
    """Raise EngineConfigError if the model's family does not multiply the configured
    activations."""
    family = family_of(model)
    if config.rounded_steps == "fp8" and not family.takes_fp8_steps:
        raise EngineConfigError(
            f"step_activations is fp8, and models of the family {family.name} multiply activations "
            "of answers in their dtype only: leave --step-activations out"
        )


def activations_of(config: EngineConfig) -> PhaseActivations:
    """Return the configured activations of both phases."""
    return FP8_STEPS if config.rounded_steps == "fp8" else BF16_STEPS


def torch_device(config: EngineConfig) -> torch.device:
    """Return the configured device. Raises EngineConfigError if it does not exist, or cannot read
    the configured KV format or multiply the configured activations."""
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineConfigError(
            "device is cuda, but PyTorch sees no GPU here: "
            "install a CUDA build of torch, or give --device cpu"
        )
    asked = {
        "kv_dtype": config.stored_kv == FP8_ROWS,
        "step_activations": config.rounded_steps == "fp8",
    }
    for name, is_fp8 in asked.items():
        if is_fp8 and device.type == "cuda" and not multiplies_fp8(device):
            raise EngineConfigError(
                f"{name} is fp8, and {torch.cuda.get_device_name(device)} has no instructions for "
                "e4m3, which GPUs have from compute capability 8.9 on: leave "
                f"--{name.replace('_', '-')} out, or give --device cpu"
            )
    return device


def use_device(device: torch.device) -> None:
    """Select this GPU on the calling thread, for all streams, graphs and kernels it makes from now
    on. Do nothing for a CPU or a device without an index."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def build_arena(
    config: EngineConfig, model: ModelConfig, device: torch.device, role: Role = Role.FUSED
) -> Arena:
    """Allocate the arena. role: the engine's role. REQUIRES: no part of the engine is on the device
    yet. Raises EngineConfigError if arena_mib is too small or too large."""
    # The plan counts memory already taken by the context again, so some memory is left to spare.
    free = None if device.type == "cpu" else config.usable_of(*torch.cuda.mem_get_info(device))
    slabs = arena_slabs(config, model, role, free)
    layout = layout_of(model, config)
    try:
        return Arena(layout, slabs, device)
    except RuntimeError as error:
        raise EngineConfigError(
            f"arena_mib {config.arena_mib} cannot be allocated: give less, or free memory"
        ) from error


def _drafted(config: EngineConfig, model: ModelConfig) -> Tensor | None:
    """Return the token ids the draft layer or the block drafter may propose. Return None if it may
    propose all tokens, or is not used. Raises ModelConfigError."""
    on_gpu = torch_device(config).type != "cpu"
    used = config.drafting(model.draft_layers, on_gpu=on_gpu)
    if not used.drafts_by_block and not (model.draft_layers and used.drafts_by_layer):
        return None
    return draft_ids(Path(config.model), model.vocab, model.eos_ids)


@contextmanager
def pair_parts(
    config: EngineConfig,
    build: BuildParts,
    role: Role,
    *,
    transport: str,
    name: str,
    wire: WireSettings,
) -> Iterator[tuple[EngineParts, DataPlane]]:
    """Build the parts and the data plane (transfers) of a prefill or decode node. The transport and
    any follower ranks are closed at the end of the `with` block. transport: a kind of
    transports/factory.py. name: the node's name for other nodes. wire: precision of transferred
    data; several ranks need exact, else EngineConfigError."""
    if config.tensor_parallel > 1 and not wire.precision.exact:
        raise EngineConfigError(
            "what several ranks hand over travels as it lies, as yet: give --wire-kv and "
            "--wire-state exact, or --tensor-parallel 1"
        )
    parts = build(config, progress_bar("weights"), role)
    try:
        mover = build_transport(transport, name, parts.arena.bytes.device)
        try:
            yield parts, _plane(config, parts, mover, transport, name, wire)
        finally:
            mover.close()
    finally:
        if parts.ranks is not None:
            parts.ranks.close()


def _plane(
    config: EngineConfig,
    parts: EngineParts,
    mover: Transport,
    transport: str,
    name: str,
    wire: WireSettings,
) -> DataPlane:
    if config.drafter is None:
        both = digests_of_weights(config.model, config.disk_cache)
        digest, tensors = both.files, both.tensors
    else:
        # Equal tensors of the model would not show another drafter.
        digest, tensors = served_digest(config), NOT_USED
    constants, formats = parts.model_config.constants, parts.model.weights.formats
    pictures = {} if parts.sight is None else parts.sight.contract(digest)
    shared = parts.shared
    if shared is None:
        memory = parts.arena.bytes
        return DataPlane.over(
            *(memory, parts.layout, digest, mover, transport, name, wire),
            constants=constants,
            weights_format=formats,
            step_activations=config.rounded_steps,
            pictures=pictures,
            tensors_digest=tensors,
        )
    return DataPlane.of_ranks(
        *(shared.region, shared.spans, digest, mover, transport, name),
        constants=constants,
        weights_format=formats,
        step_activations=config.rounded_steps,
        pictures=pictures,
        tensors_digest=tensors,
    )
