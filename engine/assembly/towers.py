"""The vision tower of an engine: its use by role, its weights, its memory.

Pure, except for build_tower().
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.pictures.file_levels import DeviceBytes
from tasuki.engine.pictures.placed import Sight
from tasuki.model.config_json import ConfigFile
from tasuki.model.families.registry import family_of, published_tower, read_config
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import TowerBytes
from tasuki.model.vision.processor import MOST_SHOWN_PIXELS, PixelRules
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import has_tower, load_tower_weights
from tasuki.model.weights.layers import tensors

log = logging.getLogger(__name__)

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_MIB = 2**20


def used_tower(config: EngineConfig) -> VisionConfig | None:
    """Return the shape of the checkpoint's tower; None: it has none, or is not to be used. Several
    GPUs use none, as yet. Raises ModelConfigError, WeightsError."""
    return None if config.vision == "off" else _seen(config)


def _seen(config: EngineConfig) -> VisionConfig | None:
    folder = Path(config.model)
    if config.tensor_parallel > 1 and config.device.split(":")[0] != "cpu":
        return None
    if not folder.is_dir() or not config.model:
        return published_tower(config.model)
    if not (folder / "config.json").is_file() or not _is_seen_by_model(folder):
        return None
    vision = VisionConfig.load(folder)
    if vision is None or not has_tower(folder):
        return None
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        log.warning("%s has a vision tower but no processor's file: text only", folder)
        return None
    return vision


def _is_seen_by_model(folder: Path) -> bool:
    """Return true if the model's family computes pictures. Raises ModelConfigError."""
    file = ConfigFile.load(folder)
    family = family_of(read_config(file))
    if not family.sees_pictures and "vision_config" in file.outer:
        log.warning("%s: pictures of %s are not computed as yet: text only", folder, family.name)
    return family.sees_pictures


def build_sight(config: EngineConfig, role: Role) -> Sight | None:
    """Return the checkpoint's vision; None: see used_tower(). A decode node has it without a tower
    too, because prefill nodes compute its pictures. Raises ModelConfigError, WeightsError."""
    if config.vision == "off" and role is not Role.DECODE:
        return None
    vision = _seen(config)
    return None if vision is None else Sight(vision, PixelRules.load(Path(config.model), vision))


def build_tower(config: EngineConfig, device: torch.device) -> VisionTower | None:
    """Load the tower of the checkpoint's pictures; None: see used_tower(). Raises ModelConfigError,
    WeightsError, EngineConfigError."""
    vision = used_tower(config)
    if vision is None:
        return None
    folder, dtype = Path(config.model), getattr(torch, config.compute_dtype)
    weights = load_tower_weights(folder, vision, dtype, device)
    return VisionTower(vision, weights, PixelRules.load(folder, vision))


def keeps_tower(config: EngineConfig, tower: VisionTower | None, folder: str) -> bool:
    """Return True if the folder has the same tower, or none. tower: the one in use. Raises the
    errors of build_tower()."""
    if tower is None:
        return True
    found = build_tower(replace(config, model=folder), torch.device("cpu"))
    if found is None:
        return True
    pairs = zip(tensors(tower.weights), tensors(found.weights), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@dataclass(frozen=True)
class TowerMemory:
    """A tower's memory on a GPU, in bytes. weights: exact. rows: budget of the pictures' rows.
    workspace: activations of the largest picture, and pixels of those decoded ahead."""

    weights: int = 0
    rows: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.rows + self.workspace

    @staticmethod
    def of(config: EngineConfig) -> "TowerMemory":
        """Count the tower of an engine's config; all is 0 without one. Raises ModelConfigError and
        WeightsError."""
        vision = used_tower(config)
        if vision is None:
            return TowerMemory()
        dtype = getattr(torch, config.compute_dtype)
        size = TowerBytes.of(vision, dtype)
        patches = MOST_SHOWN_PIXELS // vision.patch**2
        pixels = DeviceBytes.of(patches * vision.patch_values)
        rows = config.picture_rows_mib * _MIB
        return TowerMemory(size.weights, rows, size.encode(patches) + pixels.total)
