"""The tiny engine with a random tower, and prompts with random pictures for it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.pictures.placed import Sight
from tasuki.engine.request import Request
from tasuki.engine.scheduling.picture_encoder import PictureEncoder
from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.prompt_positions import rotary_axes
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import assemble_tower
from tasuki.model.weights.matrix import WHOLE, Matrix, Part
from tasuki.model.weights.source import PlainSource
from tasuki.pycache.keys import PictureDigest, PictureSource
from tests.harness.engines import Lone, tiny_parts

START, END, IMAGE, VIDEO = 120, 121, 122, 123
TOWER = VisionConfig(
    depth=3,
    hidden=24,
    heads=2,
    intermediate=33,
    out_hidden=32,
    patch=2,
    frames=2,
    merge=2,
    side=5,
    rope_theta=10000.0,
    norm_eps=1e-6,
    rotary_sections=(2, 1, 1),
    tokens=PictureTokens(START, END, IMAGE, VIDEO),
)
RULES = PixelRules(2, 2, 2, 16, 4096, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
EMBEDDING_SCALE = 0.03
ROW_BYTES = TOWER.out_hidden * 4


class RandomTensors(PlainSource):
    """A source of random tensors, always the same ones."""

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))
        scaled = noise / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.2 * noise
        return scaled.to(dtype)[part]


def seeing_parts(arena_mib: float = 8.0, slabs: int | None = None) -> EngineParts:
    """Return parts of the tiny model, with a tower."""
    parts = tiny_parts(arena_mib, slabs=slabs)
    config = parts.model_config
    axes = rotary_axes(TOWER.rotary_sections, config.rotary_dim // 2)
    # The random embeddings are so large that a token would follow from the last one alone.
    small = parts.model.weights.embedding * EMBEDDING_SCALE
    weights = replace(parts.model.weights, embedding=small, head=Matrix.of(small))
    model = Qwen35Model(config, weights, TorchBackend(config, axes=axes))
    tower = VisionTower(TOWER, assemble_tower(TOWER, RandomTensors(), torch.float32), RULES)
    return replace(parts, model=model, tower=tower, sight=Sight(TOWER, RULES))


def seeing_engine(
    parts: EngineParts | None = None, slabs: int | None = None, **settings: object
) -> Lone:
    """Return an engine that sees. settings: of its config."""
    config = EngineConfig(model="tiny", dtype="float32", **settings)  # type: ignore[arg-type]
    return Lone(config, parts=parts or seeing_parts(slabs=slabs))


def encoder(engine: Lone) -> PictureEncoder:
    """Return the engine's encoder of pictures."""
    found = engine.engine._pictures
    assert found is not None
    return found


def assert_idle(engine: Lone) -> None:
    """Assert that no picture is pinned, wished for, or in the tower."""
    own = encoder(engine)
    assert not own.is_busy and not own.is_decoding and not own._held and own._running is None
    assert own.store.pinned == own.store.reservations == 0


def break_release(engine: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each release of a request by the scheduler raise, once its pictures are released."""
    own, own_scheduler = encoder(engine), engine.engine._scheduler

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(own, name)

        def release(self, request: Request) -> None:
            own.release(request)
            raise RuntimeError("a defect")

    monkeypatch.setattr(own_scheduler, "pictures", Broken())


class Prompt:
    """A prompt in the making: text and pictures, one after the other."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pictures: list[m.PromptPicture] = []

    def text(self, tokens: Sequence[int]) -> "Prompt":
        self.tokens += tokens
        return self

    def picture(self, name: str, rows: int, columns: int, kind: int = IMAGE) -> "Prompt":
        """Add a picture of random levels. name: its content, the same for equal names."""
        self.tokens.append(START)
        patches = rows * columns * TOWER.merge**2
        seed = int.from_bytes(name.encode(), "little")
        levels = np.random.default_rng(seed).integers(0, 256, (patches, TOWER.patch_values))
        self.pictures.append(
            m.PromptPicture(
                *(len(self.tokens), rows, columns),
                digest(name, rows, columns),
                levels.astype(np.uint8),
            )
        )
        self.tokens += [kind] * (rows * columns)
        self.tokens.append(END)
        return self


def digest(name: str, rows: int, columns: int) -> PictureDigest:
    return PictureSource("image", "exif", (name.encode(),), rows, columns, "tiny").digest
