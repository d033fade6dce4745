"""What an engine of a pair is built over: any engine's parts, and a data plane over its arena."""

from collections.abc import Iterator
from contextlib import contextmanager

from tasuki.model.weights.safetensors_folder import weights_digest
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.precision.settings import WireSettings
from tasuki.transfer.transports.factory import build_transport
from tasuki.utils.progress import progress_bar

from .build import BuildParts, EngineParts
from .config import EngineConfig
from .role import Role


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
    """The transport ends with the block. transport: a kind of transports/factory.py. name: the
    node's, as peers see it."""
    parts = build(config, progress_bar("weights"), role)
    memory = parts.arena.bytes
    mover = build_transport(transport, name, memory.device)
    try:
        yield (
            parts,
            DataPlane.over(
                memory,
                parts.layout,
                weights_digest(config.model),
                mover,
                transport,
                name,
                wire,
                angles=parts.model_config.angles,
                weights_format=parts.model.weights.formats,
            ),
        )
    finally:
        mover.close()
