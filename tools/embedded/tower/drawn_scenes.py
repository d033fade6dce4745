"""Many drawn scenes as tensors, made in several processes."""

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.processor import PixelRules

from .dialogue import DialogueMaker, Sample, Size
from .scenes import Scene


@dataclass(frozen=True)
class Scenes:
    """Samples of scenes, as in `Sample`, with one more dimension in front."""

    levels: Tensor
    tokens: Tensor
    positions: Tensor
    starts: Tensor
    places: Tensor
    targets: Tensor
    answers: Tensor
    kinds: Tensor

    def chosen(self, rows: Tensor) -> "Scenes":
        """Return the samples with these indices."""
        return Scenes(*(tensor[rows] for tensor in self.tensors))

    def blind(self) -> "Scenes":
        """Return the same samples without pixels."""
        return replace(self, levels=self.levels[:, :0])

    def to(self, device: str) -> "Scenes":
        return Scenes(*(tensor.to(device) for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.levels,
            self.tokens,
            self.positions,
            self.starts,
            self.places,
            self.targets,
            self.answers,
            self.kinds,
        )


@dataclass(frozen=True)
class Drawing:
    """How scenes are drawn. prepared: folder of the model's text files with a tower. size: bounds
    of each sample. part: scenes drawn at once."""

    prepared: Path
    size: Size
    part: int = 500


def picture_shape(prepared: Path) -> tuple[VisionConfig, PixelRules]:
    """Return the tower's shape and the rules of pixels of a prepared folder. Raises
    ModelConfigError."""
    config = VisionConfig.load(prepared)
    assert config is not None, f"{prepared} is not prepared"
    return config, PixelRules.load(prepared, config)


def draw(
    work: Drawing, scene: Callable[[random.Random], Scene], count: int, seed: int, pool: Executor
) -> Scenes:
    """Draw `count` scenes. Equal seeds give equal scenes, for any number of processes. scene: makes
    a scene."""
    seeds = [seed * 1_000_003 + part for part in range(-(-count // work.part))]
    found = list(pool.map(partial(_draw_part, work, scene), seeds))
    joined = (np.concatenate(arrays)[:count] for arrays in zip(*found, strict=True))
    return Scenes(*map(torch.from_numpy, joined))


def _draw_part(
    work: Drawing, scene: Callable[[random.Random], Scene], seed: int
) -> tuple[NDArray[np.generic], ...]:
    torch.set_num_threads(1)
    config, rules = picture_shape(work.prepared)
    tokenizer = Tokenizer.from_file(str(work.prepared / "tokenizer.json"))
    maker, chooser = DialogueMaker(tokenizer, config, rules), random.Random(seed)
    samples = [maker.sample(scene(chooser), chooser, work.size) for _ in range(work.part)]

    def stacked(each: Callable[[Sample], Tensor]) -> NDArray[np.generic]:
        found: NDArray[np.generic] = torch.stack([each(sample) for sample in samples]).numpy()
        return found

    return (
        stacked(lambda sample: sample.levels),
        stacked(lambda sample: sample.tokens.int()),
        stacked(lambda sample: sample.positions.int()),
        stacked(lambda sample: torch.tensor(sample.start)),
        stacked(lambda sample: sample.places),
        stacked(lambda sample: sample.targets),
        stacked(lambda sample: sample.answers),
        stacked(lambda sample: sample.kind),
    )
