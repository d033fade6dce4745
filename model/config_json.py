"""A config.json as it lies in a checkpoint: its fields, its quantization, its draft layer.

Typed access to the fields of a config.json, each failure naming the file, the field, the mend.

Immutable, so free to share between threads.

`quantization_config` of a checkpoint: what it says of the whole, which no tensor can say.

What a module is stored as is decided by its tensors (weights/published_matrix.py). Here stands what
would change the numbers' meaning without leaving a trace among them, and is refused. Immutable.

What config.json says of a draft layer that its tensors may not show: several, of which a shard
is missing, or an embedding of its own.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST = sys.float_info.max


class ModelConfigError(ValueError):
    """A config.json that cannot be served; the message names the file, the field and the mend."""


@dataclass(frozen=True)
class ConfigFields:
    """An object of a config.json. source: the file; within: what its fields' names begin with."""

    values: Mapping[str, Any]
    source: str
    within: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: object = None) -> Any:
        return self.values.get(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer. Raises ModelConfigError."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing", "copy it from the published config")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, f"is {value!r}", "use a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Positive and finite. Raises ModelConfigError."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing", "copy it from the published config")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
            raise self.error(name, f"is {value!r:.40}", "use a positive, finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Raises ModelConfigError where it is anything but true, false or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"is {value!r:.40}", "use true or false")
        return default if value is None else value

    def require(self, name: str, only: object) -> None:
        """Raises ModelConfigError where the field is there and is anything else."""
        value = self.get(name, only)
        if value != only:
            raise self.error(name, f"is {value!r}", f"only {only!r} is supported")

    def object(self, name: str) -> "ConfigFields | None":
        """The object of that name; None where it is absent, null or empty. Raises
        ModelConfigError."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "is not an object", "copy the published one")
        return ConfigFields(value, self.source, f"{self.within}{name}.")

    def error(self, name: str, what: str, mend: str) -> ModelConfigError:
        return ModelConfigError(f"{self.source}: {self.within}{name} {what}; {mend}")


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


_OFF = "one layer over the model's own embedding is served; give --draft-layer off"


def check_draft_layer_config(directory: Path) -> None:
    """Of a folder that holds tensors of such a layer. Raises ModelConfigError."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # Whoever reads the shape says so.
        return
    outer = ConfigFields(raw if isinstance(raw, dict) else {}, str(path))
    for fields in (outer, outer.object("text_config")):
        if fields is None:
            continue
        count = fields.get("mtp_num_hidden_layers")
        # A config of 0 is that of a library which reads no such layer: its tensors decide.
        if count not in (None, 0, 1):
            raise fields.error("mtp_num_hidden_layers", f"is {count!r:.40}", _OFF)
        if fields.flag("mtp_use_dedicated_embeddings", False):
            raise fields.error("mtp_use_dedicated_embeddings", "is true", _OFF)
