"""Loading of a model: its weights from a checkpoint folder or at random, and the model over them.

Every step is the family's own, found by the config's `model_type`.
"""

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.protocol import Model
from tasuki.model.weights.copied_files import kept_by
from tasuki.model.weights.layers import Weights, tensors
from tasuki.model.weights.safetensors_folder import Checkpoint, rows_together
from tasuki.model.weights.shard import Shard
from tasuki.model.weights.source import RandomSource, ShardedSource, TensorSource
from tasuki.utils.logs import Progress, no_progress

from .family import Assembly
from .registry import family_of

log = logging.getLogger(__name__)


def assemble(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
    shard: Shard | None = None,
) -> Weights:
    """Return the weights of a model of any family, see Family.assemble(). config: config of the
    whole model. shard: the rank whose part is read; None: the whole model. Raises WeightsError."""
    family = family_of(config)
    if shard is not None:
        cuts = family.cuts(config)
        source, config = ShardedSource(source, cuts, shard), cuts.part(shard)
    weights: Weights = family.assemble(config, source, dtype, device, progress)
    return weights


def build_model(config: ModelConfig, weights: Weights, assembly: Assembly | None = None) -> Model:
    """Build the model on its weights' device. config, weights: of one rank if there are several."""
    model: Model = family_of(config).build(config, weights, assembly or Assembly())
    return model


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """Return random weights. Activations stay near unit size, and logits spread widely."""
    return assemble(config, RandomSource(seed, device), dtype, device)


def head_block(directory: Path | str, config: ModelConfig) -> int:
    """Return the number of neighbouring head rows with one common scale; 1 for a tied head. Raises
    WeightsError, ModelConfigError."""
    return 1 if config.tied else rows_together(directory, (config.vocab, config.hidden))


def load_weights(
    directory: Path | str,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
    shard: Shard | None = None,
) -> Weights:
    """Return a checkpoint's weights. Plain ones are converted to `dtype`, quantised ones stay as
    stored; a family keeps some in float32. config: config of the whole model. shard: the rank whose
    slices are read; None: the whole model. On a CPU they are copied: a later write to the folder
    changes nothing. Raises WeightsError, ModelConfigError."""
    family = family_of(config)
    family.check_device(torch.device(device))
    with _without_collections(), Checkpoint(Path(directory), kept_by(device)) as source:
        source.check_kernels(torch.device(device))
        begun = time.monotonic()
        weights = assemble(config, source, dtype, device, progress, shard)
        drafts = config.draft_layers > 0
        if shard is None:
            source.check_left_over(drafts=drafts)
        else:
            elsewhere = partial(family.cuts(config).is_elsewhere, shard)
            source.check_left_over(elsewhere, drafts=drafts)
        taken = time.monotonic() - begun
        size = sum(tensor.nbytes for tensor in tensors(weights)) / 2**30
        count, kinds = len(source), weights.formats
        log.info("weights: %d tensors, %.2f GiB as %s, in %.1f s", count, size, kinds, taken)
        return weights


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector inside the context. Loading creates hundreds of thousands of
    lasting objects without cycles. Searches for cycles would take half of the loading time of small
    tensors."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_PAGE = 4096


def read_tables(weights: Weights) -> None:
    """Read every page of the weights' mapped tables, so that later reads find them in memory. The
    system keeps one copy for all processes, and may drop it only if memory is short."""
    begun = time.monotonic()
    for table in weights.tables:
        # A byte of each page is enough: the system reads whole pages.
        table.reshape(-1).view(torch.uint8)[::_PAGE].max()
    if weights.tables:
        size = sum(table.nbytes for table in weights.tables) / 2**30
        log.info("tables: %.2f GiB read in %.1f s", size, time.monotonic() - begun)
