"""The reader of the family's config.json: flat, with experts and plain rotary positions."""

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.families.qwen3_5.reader import ConfigReader

MODEL_TYPES = frozenset({"qwen3_next"})


def read_config(file: ConfigFile) -> DeltaNetConfig:
    """Return the model's shape. Raises ModelConfigError, also for what this family has not: a
    nested text model, layers without experts, sections of rotary positions, an assumed base."""
    fields = file.outer
    if file.is_nested:
        raise fields.error(
            "text_config", "is an object", "take a flat config.json, as published ones are"
        )
    rope = fields.object("rope_parameters") or fields
    if "mrope_section" in rope:
        raise rope.error(
            "mrope_section", "is given", "remove it: the family has plain rotary positions"
        )
    for holder in (fields.object("rope_scaling"), fields.object("rope_parameters"), fields):
        if holder is not None and "rope_theta" in holder:
            break
    else:
        raise fields.error("rope_theta", "is missing", "copy it from the published config")
    return ConfigReader(file, frozenset(), MODEL_TYPES).config()
