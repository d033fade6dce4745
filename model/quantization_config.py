"""`quantization_config` of a checkpoint: what it says of the whole, which no tensor can say.

What a module is stored as is decided by its tensors (weights/published_matrix.py). Here stands what
would change the numbers' meaning without leaving a trace among them, and is refused. Immutable.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config_fields import ConfigFields

_METHODS = ("fp8", "compressed-tensors", "modelopt")
_BLOCK = [128, 128]


@dataclass(frozen=True)
class QuantizationConfig:
    """method: `quant_method`; None: nothing is said. activation_scheme: `static` where inputs are
    quantised by scales of the file."""

    method: str | None = None
    activation_scheme: str = "dynamic"

    @staticmethod
    def load(directory: Path) -> "QuantizationConfig":
        """Of config.json, at any level that publishers put it. Raises ModelConfigError."""
        path = directory / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            # Whoever reads the shape says so; a folder of weights alone may be read too.
            return QuantizationConfig()
        return QuantizationConfig.from_dict(raw if isinstance(raw, dict) else {}, str(path))

    @staticmethod
    def from_dict(raw: dict[str, Any], source: str = "config") -> "QuantizationConfig":
        """Raises ModelConfigError."""
        outer = ConfigFields(raw, source)
        found = None
        for name in ("quantization_config", "compression_config"):
            for holder in (outer, outer.object("text_config")):
                found = found or (holder.object(name) if holder is not None else None)
        return QuantizationConfig() if found is None else _read(found)


def _read(fields: ConfigFields) -> QuantizationConfig:
    method = fields.get("quant_method")
    if not isinstance(method, str) or not (method in _METHODS or method.startswith("modelopt")):
        raise fields.error(
            "quant_method",
            f"is {method!r}",
            f"{', '.join(_METHODS)} are served; take such a checkpoint, or convert it to BF16",
        )
    fields.require("fmt", "e4m3")
    if fields.get("weight_block_size") is not None:
        fields.require("weight_block_size", _BLOCK)
    scheme = fields.get("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise fields.error("activation_scheme", f"is {scheme!r}", "dynamic and static are served")
    _refuse_transforms(fields)
    return QuantizationConfig(method, scheme)


def _refuse_transforms(fields: ConfigFields) -> None:
    """What turns or thins the weights before they were stored. Raises ModelConfigError."""
    if fields.object("transform_config") is not None:
        raise fields.error(
            "transform_config",
            "turns activations before a product, which is not computed here",
            "take a checkpoint without it",
        )
    sparsity = fields.object("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise sparsity.error("format", f"is {sparsity.get('format')!r}", "only dense is supported")
    groups = fields.object("config_groups")
    for name in groups.values if groups is not None else ():
        assert groups is not None
        group = groups.object(name)
        weights = group.object("weights") if group is not None else None
        if weights is not None and weights.get("block_structure") is not None:
            weights.require("block_structure", _BLOCK)
