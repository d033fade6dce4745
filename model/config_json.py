"""The config.json of a checkpoint: its fields, quantization, draft layer and positions.

ConfigFields reads fields by type; each error names the file, the field and the fix. All is
immutable, so free to share between threads.

QuantizationConfig: the facts of `quantization_config` that no tensor shows. The tensors of a module
alone decide its storage format (weights/published_matrix.py). Settings are rejected if they change
the numbers' meaning without a trace in the tensors. A draft layer with an embedding of its own is
rejected too, and so are several draft layers.

RopeSettings: rotary parameters, YaRN, the longest context. Follows transformers: a given
`rope_scaling` replaces all of `rope_parameters`, and `type` is the old name of `rope_type`.
Unsupported settings are rejected. A `rope_scaling` without rope_theta is rejected too, because
transformers would take a base unlike any model of the family. The sections of mrope change nothing,
because text has equal positions in all of them.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .layer_kind import MODEL_KINDS

_MOST = sys.float_info.max
_MOST_TOKENS = 2**31
"""Upper limit of token ids, because ids are int32 everywhere."""
MOST_LISTED = 2**16
"""Largest number of layers or experts: each costs memory of its own."""


class ModelConfigError(ValueError):
    """Error in a config.json. The message names the file, the field and the fix."""


@dataclass(frozen=True)
class ConfigFields:
    """The fields of one JSON object in a config.json. source: name of the file; within: prefix of
    the field names in error messages, such as `text_config.`."""

    values: Mapping[str, Any]
    source: str
    within: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: object = None) -> Any:
        return self.values.get(name, default)

    def size(self, name: str, default: int | None = None, most: int = _MOST_TOKENS) -> int:
        """Return the field as a positive integer, at most `most`. Raises ModelConfigError for
        another value, or if the field is missing without a default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(name, f"is {value!r:.40}", f"use a positive integer, at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return the field as a positive, finite number. Raises ModelConfigError for another value,
        or if the field is missing without a default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
            raise self.error(name, f"is {value!r:.40}", "use a positive, finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return the field as a boolean; return the default if the field is null or absent. Raises
        ModelConfigError for any other value."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"is {value!r:.40}", "use true or false")
        return default if value is None else value

    def require(self, name: str, only: object) -> None:
        """Raise ModelConfigError if the field is present with a value other than `only`."""
        value = self.get(name, only)
        if value != only:
            raise self.error(name, f"is {value!r}", f"only {only!r} is supported")

    def object(self, name: str) -> "ConfigFields | None":
        """Return the field as a JSON object's fields. Return None if the field is absent, null or
        empty. Raises ModelConfigError if it is no object."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "is not an object", "copy the published one")
        return ConfigFields(value, self.source, f"{self.within}{name}.")

    def _present(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing", "copy it from the published config")
        return value

    def error(self, name: str, what: str, fix: str) -> ModelConfigError:
        return ModelConfigError(f"{self.source}: {self.within}{name} {what}; {fix}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ModelConfigError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelConfigError(f"{path}: is nested too deep; fetch the file again") from error
    except OSError as error:
        raise ModelConfigError(
            f"{path}: cannot be read ({error.strerror}); give a folder in Hugging Face layout"
        ) from error
    except ValueError as error:
        raise ModelConfigError(f"{path}: is not JSON ({error}); fetch the file again") from error
    if not isinstance(raw, dict):
        raise ModelConfigError(f"{path}: holds no JSON object; fetch the file again")
    return raw


def _raw_or_empty(directory: Path) -> tuple[dict[str, Any], str]:
    """Return a folder's config.json and its path. It is empty if it cannot be read, because the
    reader of the shape reports this."""
    path = directory / "config.json"
    try:
        return read_json(path), str(path)
    except ModelConfigError:
        return {}, str(path)


@dataclass(frozen=True)
class ConfigFile:
    """A checkpoint's config.json, for the reader of its family. outer: all fields; text: those of
    the text model, `outer` itself in a flat file; generation: of any generation_config.json."""

    outer: ConfigFields
    text: ConfigFields
    generation: Mapping[str, Any]

    @staticmethod
    def load(directory: Path | str) -> "ConfigFile":
        """Read a folder's config.json and any generation_config.json. Raises ModelConfigError."""
        path = Path(directory) / "config.json"
        generation = Path(directory) / "generation_config.json"
        extra = read_json(generation) if generation.exists() else {}
        return ConfigFile.of(read_json(path), extra, str(path))

    @staticmethod
    def of(
        raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config"
    ) -> "ConfigFile":
        """Return a file of these contents. source: its name in errors. Raises ModelConfigError."""
        outer = ConfigFields(raw, source)
        text = raw.get("text_config", raw)
        if not isinstance(text, dict):
            raise outer.error(
                "text_config", "is not an object", "copy it from the published config"
            )
        return ConfigFile(outer, ConfigFields(text, source), generation or {})

    @property
    def is_nested(self) -> bool:
        return self.text.values is not self.outer.values

    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids of all end tokens, ascending. Raises ModelConfigError."""
        ids: set[int] = set()
        for holder in (self.outer, self.text, self.generation):
            found = holder.get("eos_token_id")
            listed = found if isinstance(found, list) else [] if found is None else [found]
            if not all(type(item) is int and abs(item) < _MOST_TOKENS for item in listed):
                raise self.text.error(
                    "eos_token_id", f"is {found!r:.80}", "use an id or a list of ids"
                )
            ids.update(listed)
        return tuple(sorted(ids))

    def is_tied(self) -> bool:
        """Return true if the head is the embedding. Raises ModelConfigError."""
        inner = self.text.flag("tie_word_embeddings", default=False)
        return self.outer.flag("tie_word_embeddings", default=inner)


_METHODS = ("fp8", "compressed-tensors", "modelopt")
_BLOCK = [128, 128]


@dataclass(frozen=True)
class QuantizationConfig:
    """Quantisation settings of a checkpoint. method: its `quant_method`; None: the config has no
    such settings. activation_scheme: `static` if activations are quantised with scales from the
    checkpoint's files, else `dynamic`."""

    method: str | None = None
    activation_scheme: str = "dynamic"

    @staticmethod
    def load(directory: Path) -> "QuantizationConfig":
        """Return the quantisation settings in a folder's config.json, at any nesting level used by
        publishers; without a method if the file cannot be read. Raises ModelConfigError."""
        # A folder of weights alone may be read too.
        return QuantizationConfig.from_dict(*_raw_or_empty(directory))

    @staticmethod
    def from_dict(raw: dict[str, Any], source: str = "config") -> "QuantizationConfig":
        """Return the quantisation settings in a parsed config.json; without any, their method is
        None. Raises ModelConfigError."""
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
    """Raise ModelConfigError if, by the config, stored weights are transformed or sparse."""
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
    """Check the config of a checkpoint folder with a draft layer: at most one such layer, over the
    model's own embedding. Do nothing if config.json cannot be read. Raises ModelConfigError."""
    outer = ConfigFields(*_raw_or_empty(directory))
    for fields in (outer, outer.object("text_config")):
        if fields is None:
            continue
        count = fields.get("mtp_num_hidden_layers")
        # A library without such layers writes 0 into the config. Its tensors decide.
        if count not in (None, 0, 1):
            raise fields.error("mtp_num_hidden_layers", f"is {count!r:.40}", _OFF)
        if fields.flag("mtp_use_dedicated_embeddings", False):
            raise fields.error("mtp_use_dedicated_embeddings", "is true", _OFF)


_THETA = 1e7
_PARTIAL = 0.25
_BETA_FAST = 32.0
_BETA_SLOW = 1.0


@dataclass(frozen=True)
class Yarn:
    """YaRN settings: rotary angles for contexts `factor` times as long as the `original` trained
    positions.

    A pair of elements with more than beta_fast rotations over `original` positions keeps its
    frequency. With fewer than beta_slow rotations, its frequency is divided by the factor. The
    pairs between get a mixture of the two frequencies. truncate: the range of mixed pairs is
    rounded to whole pairs. attention_factor: multiplies cos and sin, so attention scores grow with
    its square.
    """

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


@dataclass(frozen=True)
class RopeSettings:
    """Rotary settings. theta: base of the frequencies. partial: rotated fraction of a head. yarn:
    YaRN settings; None: the trained angles. positions: tokens of the longest context."""

    theta: float
    partial: float
    yarn: Yarn | None
    positions: int

    @staticmethod
    def of(text: ConfigFields, outer: ConfigFields) -> "RopeSettings":
        """Return the rotary settings of a config. text: the text model's config; outer: the config
        object around it, or `text` itself. Raises ModelConfigError."""
        _refuse_misplaced(text, outer)
        scaling = text.object("rope_scaling")
        rope = scaling or text.object("rope_parameters") or ConfigFields({}, text.source)
        named = "rope_type" if "rope_type" in rope else "type"
        kind = rope.get(named, "default")
        if kind not in ("default", "yarn"):
            raise rope.error(named, f"is {kind!r}", "only 'default' and 'yarn' are supported")
        for layer in MODEL_KINDS:
            if layer.value in rope:
                raise rope.error(layer.value, "is for one kind of layer", "give one for all layers")
        yarn = _yarn(rope, text) if kind == "yarn" else None
        certain = scaling is None and yarn is None
        return RopeSettings(
            theta=_either(rope, text, "rope_theta", _THETA if certain else None),
            partial=_either(rope, text, "partial_rotary_factor", _PARTIAL),
            yarn=yarn,
            positions=_positions(rope, text, yarn),
        )


def _refuse_misplaced(text: ConfigFields, outer: ConfigFields) -> None:
    if outer.values is text.values:
        return
    for name in ("rope_scaling", "rope_parameters"):
        if outer.get(name) and outer.get(name) != text.get(name):
            raise outer.error(name, "is beside text_config and not in it", "move it there")


def _either(rope: ConfigFields, text: ConfigFields, name: str, default: float | None) -> float:
    """Return the number `name` of the rotary parameters, or in older configs of the text model."""
    return (text if name in text and name not in rope else rope).number(name, default)


def _yarn(rope: ConfigFields, text: ConfigFields) -> Yarn:
    original = _original(rope, text).size("original_max_position_embeddings", _published(text))
    # null, unlike no factor, asks for the ratio of the two lengths.
    ratio = _published(text) / original
    factor = ratio if rope.get("factor", 0) is None else rope.number("factor")
    if factor < 1:
        raise rope.error("factor", f"is {factor:g}", "use 1 or more")
    beta_fast = _given(rope, "beta_fast") or _BETA_FAST
    beta_slow = _given(rope, "beta_slow") or _BETA_SLOW
    if beta_fast < beta_slow:
        raise rope.error(
            "beta_fast", f"is {beta_fast:g}, below beta_slow {beta_slow:g}", "exchange the two"
        )
    truncate = rope.get("truncate", True)
    if not isinstance(truncate, bool):
        raise rope.error("truncate", f"is {truncate!r}", "use true or false")
    return Yarn(factor, original, beta_fast, beta_slow, _attention_factor(rope, factor), truncate)


def _attention_factor(rope: ConfigFields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    mscale, all_dim = _given(rope, "mscale"), _given(rope, "mscale_all_dim")
    if mscale is not None and all_dim is not None:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _given(rope: ConfigFields, name: str) -> float | None:
    """Return the field as a number; None if it is absent, null or, as in transformers, 0."""
    return rope.number(name) if rope.get(name) else None


def _original(rope: ConfigFields, text: ConfigFields) -> ConfigFields:
    """Return the JSON object with the trained context length. The text model's config takes
    precedence over the rotary parameters."""
    return text if "original_max_position_embeddings" in text else rope


def _published(text: ConfigFields) -> int:
    return text.size("max_position_embeddings", 262144)


def _positions(rope: ConfigFields, text: ConfigFields, yarn: Yarn | None) -> int:
    published = _published(text)
    stated = "original_max_position_embeddings" in _original(rope, text)
    if yarn is None or not stated or published > yarn.original:
        return published
    # Only the rotary parameters were edited, as the models' cards advise.
    return int(yarn.original * yarn.factor)
