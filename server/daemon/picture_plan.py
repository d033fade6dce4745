"""The part of `tasuki serve --dry-run` about pictures on a CPU: tower, rows, and their bytes.

Pure but for the checkpoint's small JSON files: no weights are read.
"""

from pathlib import Path

import torch

from tasuki.engine.config import EngineConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import TowerBytes, rows_bytes
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import PixelRules
from tasuki.server.pictures.sent_picture import PictureLimits

_MIB = 2**20
_COLOURS = 3


def cpu_pictures(config: EngineConfig) -> str:
    """Return the memory of pictures on a CPU node as lines of text; empty for a model of text.
    config: of the planned engine. Raises ModelConfigError."""
    folder = Path(config.model)
    vision = VisionConfig.load(folder) if folder.is_dir() else None
    if vision is None:
        return ""
    if config.vision == "off":
        return "pictures on a CPU: none, by --vision off"
    try:
        rules = PixelRules.load(folder, vision).limited(PictureLimits().shown_pixels)
    except ModelConfigError as error:
        return f"pictures on a CPU: none: {error}"
    dtype = getattr(torch, config.compute_dtype)
    tower = TowerBytes.of(vision, dtype)
    patches = rules.most // rules.patch**2
    tokens = rules.most // rules.factor**2
    budget = config.picture_rows_mib * _MIB
    rows = rows_bytes(1, vision, dtype)
    most = PictureBounds().most_pixels
    lines = (
        ("vision tower", tower.weights, f"{vision.depth} blocks; none with --vision off"),
        (
            "rows of pictures",
            budget,
            f"--picture-rows-mib: {budget // rows} tokens, or {budget // (rows * tokens)} pictures "
            f"of the largest, {tokens} tokens",
        ),
        ("workspace of a picture", tower.encode(patches), f"of the largest, {patches} patches"),
        ("a decoded picture", most * _COLOURS, f"of the most pixels accepted, {most}"),
    )
    text = [f"{name:<30}{count / _MIB:>10.1f} MiB  {about}" for name, count, about in lines]
    return "\n".join(["pictures on a CPU, beside weights and arena", *text])
