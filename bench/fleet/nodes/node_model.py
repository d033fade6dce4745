"""What a node of a simulated fleet serves: how its cache lies, and what its prefills take."""

from dataclasses import dataclass
from typing import Self

from tasuki.model.costs import PrefillFlops
from tasuki.model.known_models import published_or_folder
from tasuki.pycache.layout import CacheLayout
from tasuki.routing.node_load import PrefillSeconds

from .measured_prefills import prefill_seconds


@dataclass(frozen=True)
class NodeModel:
    """source: where the seconds come from."""

    layout: CacheLayout
    flops: PrefillFlops
    seconds: PrefillSeconds
    source: str

    @classmethod
    def published(cls, name: str, tflops: float | None, fixed: float) -> Self:
        """name: of a published shape, or a checkpoint's folder. tflops, fixed: as prefill_seconds
        has them. Raises ModelConfigError."""
        config = published_or_folder(name)
        flops = PrefillFlops.for_model(config)
        seconds, source = prefill_seconds(name, tflops, fixed, flops.linear, flops.quadratic)
        return cls(config.cache_layout("bfloat16", "bfloat16", "float32"), flops, seconds, source)
