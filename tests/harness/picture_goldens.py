"""Goldens of checkpoints with a vision tower, stored beside the repository: pictures, embedding
rows and positions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchOperators, TorchPlan
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, one_rank
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.picture_file import PictureBounds, decode
from tasuki.model.vision.pixels import PicturePatches, image_patches
from tasuki.model.vision.processor import ClipRules, PixelRules
from tasuki.model.vision.prompt_positions import (
    PictureKind,
    PromptLayout,
    PromptPicture,
    prompt_layout,
    rotary_axes,
)
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import load_tower_weights
from tests.harness.clip_frames import clip_patches
from tests.harness.goldens import BESIDE
from tests.harness.qwen35 import load_config, load_weights

NAMES = ("vision-dense", "vision-dense-d128", "vision-moe")
needs_goldens = pytest.mark.skipif(
    not (BESIDE / NAMES[0]).is_dir(), reason=f"{BESIDE} with vision goldens is not there"
)


@dataclass(frozen=True)
class GoldenItem:
    """An image or a video clip of a case. values: its object in golden.json. rows: expected
    embeddings, [tokens, hidden]."""

    folder: Path
    values: dict[str, Any]
    rows: Tensor

    def frames(self) -> list[Tensor]:
        """Return the item's decoded frames, each [height, width, 3] uint8."""
        files = [self.folder / "images" / name for name in self.values["files"]]
        return [decode(file.read_bytes(), PictureBounds()) for file in files]


@dataclass(frozen=True)
class PictureCase:
    """A golden case. values: its object in golden.json. positions: expected positions, [3, tokens].
    last_logits: expected logits after the prompt, [vocab]."""

    values: dict[str, Any]
    items: tuple[GoldenItem, ...]
    positions: Tensor
    last_logits: Tensor


@dataclass(frozen=True)
class PictureModel:
    """A checkpoint with a vision tower, in float32."""

    name: str
    folder: Path
    config: VisionConfig
    rules: PixelRules
    clip: ClipRules
    tower: VisionTower
    tolerance: dict[str, float]

    @staticmethod
    @cache
    def load(name: str) -> "PictureModel":
        torch.set_num_threads(1)
        folder = BESIDE / name
        config = VisionConfig.load(folder)
        assert config is not None
        rules, clip = PixelRules.load(folder, config), ClipRules.load(folder, config)
        assert clip is not None
        tower = VisionTower(config, load_tower_weights(folder, config, torch.float32), rules)
        document = json.loads((folder / "golden.json").read_text())
        return PictureModel(name, folder, config, rules, clip, tower, document["tolerance"])

    def case(self, name: str) -> PictureCase:
        document = json.loads((self.folder / "golden.json").read_text())
        values = next(case for case in document["cases"] if case["name"] == name)
        with np.load(self.folder / "golden.npz") as arrays:
            items = tuple(
                GoldenItem(self.folder, item, torch.from_numpy(arrays[item["embeds"]]))
                for item in values["items"]
            )
            positions = torch.from_numpy(arrays[f"{name}.positions"])
            logits = torch.from_numpy(arrays[f"{name}.last_logits"])
        return PictureCase(values, items, positions, logits)

    def patches(self, item: GoldenItem) -> tuple[PicturePatches, ...]:
        """Return the patches of an item's pictures. An image is one picture, and a clip has one for
        each frame pair."""
        frames = item.frames()
        if item.values["kind"] == "image":
            return (image_patches(frames[0], self.rules),)
        return clip_patches(frames, self.rules, self.clip)

    def layout(self, case: PictureCase) -> PromptLayout:
        """Return the layout of a case's prompt, with the place of each picture."""
        pictures = [
            PromptPicture(PictureKind(item.values["kind"]), patches.grid)
            for item in case.items
            for patches in self.patches(item)
        ]
        return prompt_layout(case.values["prompt"], pictures, self.config.tokens)


def golden_cases() -> list[tuple[str, str]]:
    """Return (model, case) of all goldens, for parametrize. Returns one ("none", "none") if they
    are missing."""
    found = []
    for name in NAMES:
        file = BESIDE / name / "golden.json"
        if file.exists():
            cases = json.loads(file.read_text())["cases"]
            found += [(name, case["name"]) for case in cases]
    return found or [("none", "none")]


@dataclass(frozen=True)
class ThreeAxisAngles(RotaryAngles):
    """Rotary angles of a prompt with pictures, and of its answer. positions: positions of the
    prompt's tokens, [3, prompt]. axes: position axis of each pair, [pairs]."""

    positions: Tensor = field(default_factory=lambda: torch.empty(3, 0))
    delta: int = 0

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        assert self.axes is not None
        prompt = self.positions.shape[1]
        places = torch.where(
            positions < prompt,
            self.positions[:, positions.clamp(max=prompt - 1)],
            positions + self.delta,
        )
        angles = places[self.axes].T.float()[:, None, :] * self.frequencies
        return angles.cos() * self.scale, angles.sin() * self.scale


class PictureBackend:
    """The PyTorch model backend with three rotary positions for a token."""

    def __init__(self, config: DeltaNetConfig, angles: RotaryAngles) -> None:
        self._config = config
        self._angles = angles
        self._transfer_id = RowRoom()

    def bind(self, batch: Batch) -> TorchOperators:
        plan = TorchPlan.of(batch, self._config, self._angles, self._transfer_id)
        return TorchOperators(self._config, plan, one_rank)


def model_of(
    model: PictureModel, layout: PromptLayout, prompt: Sequence[int], rows: Sequence[Tensor]
) -> tuple[Qwen35Model, list[int]]:
    """Return the language model for one prompt, and the prompt's ids in it.

    rows: embeddings of the pictures, in their order. They follow the embedding table, so a
    placeholder's id is its row's.
    """
    config = load_config(model.folder)
    weights = load_weights(model.folder, config, torch.float32)
    ids, next_row = list(prompt), config.vocab
    for run in layout.runs:
        ids[run.start : run.end] = range(next_row, next_row + run.tokens)
        next_row += run.tokens
    table = torch.cat([weights.embedding, *rows])
    plain = RotaryAngles.of(config)
    angles = ThreeAxisAngles(
        plain.frequencies,
        plain.scale,
        rotary_axes(model.config.rotary_sections, len(plain.frequencies)),
        layout.positions(0, len(ids)),
        layout.delta,
    )
    backend = PictureBackend(config, angles)
    return Qwen35Model(config, replace(weights, embedding=table), backend), ids
