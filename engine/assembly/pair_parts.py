"""What an engine of a pair is built over: any engine's parts, and a data plane over its arena."""

from collections.abc import Iterator
from contextlib import contextmanager

from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.tiers.disk.kept_folder import digest_of_weights
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.settings import WireSettings
from tasuki.transfer.transports.base import Transport
from tasuki.transfer.transports.factory import build_transport
from tasuki.utils.logs import progress_bar

from .parts import BuildParts, EngineParts


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
    digest = digest_of_weights(config.model, config.disk_cache)
    constants, formats = parts.model_config.constants, parts.model.weights.formats
    shared = parts.shared
    if shared is None:
        memory = parts.arena.bytes
        return DataPlane.over(
            *(memory, parts.layout, digest, mover, transport, name, wire),
            constants=constants,
            weights_format=formats,
        )
    return DataPlane.of_ranks(
        *(shared.region, shared.spans, digest, mover, transport, name),
        constants=constants,
        weights_format=formats,
    )
