"""The families of models by `model_type`, and a model's config by folder or published name."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tasuki.model.config import ModelConfig
from tasuki.model.config_json import ConfigFile, ModelConfigError
from tasuki.model.vision.config import VisionConfig

from .family import Family
from .kimi_linear.family import KimiLinearFamily
from .qwen3_5.family import Qwen35Family
from .qwen3_next.family import Qwen3NextFamily
from .qwen4_exp.family import Qwen4ExpFamily

AnyFamily: TypeAlias = Family[Any, Any]
"""A family that takes only configs and weights of its own type."""

FAMILIES: tuple[AnyFamily, ...] = (
    Qwen35Family(),
    Qwen3NextFamily(),
    KimiLinearFamily(),
    Qwen4ExpFamily(),
)


def family_of(config: ModelConfig) -> AnyFamily:
    """Return the family that read the config."""
    return next(family for family in FAMILIES if config.model_type in family.model_types)


def load_config(directory: Path | str) -> ModelConfig:
    """Return the shape of the model in a checkpoint folder. Raises ModelConfigError."""
    return read_config(ConfigFile.load(directory))


def config_of(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config"
) -> ModelConfig:
    """Return the shape described by the contents of config.json and generation_config.json. source:
    name of the file in error messages. Raises ModelConfigError."""
    return read_config(ConfigFile.of(raw, generation, source))


def read_config(file: ConfigFile) -> ModelConfig:
    """Return the shape in a config.json, as read by its family. Raises ModelConfigError."""
    name = file.outer.get("model_type")
    for family in FAMILIES:
        if name in family.model_types:
            config: ModelConfig = family.read_config(file)
            return config
    known = "; ".join(f"{one.name} ({', '.join(sorted(one.model_types))})" for one in FAMILIES)
    raise file.outer.error("model_type", f"is {name!r}, which is unknown here", f"use {known}")


def published_names() -> tuple[str, ...]:
    """Return the short names of all published models."""
    return tuple(name for family in FAMILIES for name in family.published_names)


def published(name: str) -> dict[str, Any]:
    """Return the config.json of a published model, by its short or huggingface.co name. Raises
    ModelConfigError."""
    found = next(_published(name), None)
    if found is None:
        raise _unknown(name)
    return dict(found[1])


def published_or_folder(name: str) -> ModelConfig:
    """Return the config of the checkpoint folder with this path. Without such a folder, return that
    of a published model, by its short or its huggingface.co name. Raises ModelConfigError."""
    if Path(name).is_dir():
        return load_config(name)
    return config_of(published(name), source=name)


def published_tower(name: str) -> VisionConfig | None:
    """Return the vision tower of a published model; None for another name, or without a tower."""
    found = next(_published(name), None)
    return None if found is None else found[0].published_tower(name)


def with_draft_layer(model: ModelConfig, name: str, draft_layer: str) -> ModelConfig:
    """Return the model's config as served with `--draft-layer` set to `draft_layer` (auto or off).
    It is unchanged for off, and for a model without a draft layer. name: a published model, or a
    checkpoint folder. Raises WeightsError, ModelConfigError."""
    if draft_layer == "off":
        return model
    return replace(model, draft_layers=family_of(model).draft_layers(name))


def _published(name: str) -> Iterator[tuple[AnyFamily, Mapping[str, Any]]]:
    for family in FAMILIES:
        config = family.published(name)
        if config is not None:
            yield family, config


def _unknown(name: str) -> ModelConfigError:
    known = ", ".join(published_names())
    return ModelConfigError(
        f"model {name}: no such folder: a plan downloads nothing, and looks up no name in the "
        f"Hugging Face cache; name a checkpoint's folder, or one of {known}"
    )
