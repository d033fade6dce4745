"""Shape of a checkpoint's vision tower, read from config.json.

VisionConfig: the fields of `vision_config`. PictureTokens: ids of the placeholder tokens, from the
outer object. Both are immutable, so free to share between threads.

Other activations, outputs of inner blocks (Qwen3-VL's deepstack) and other rotary positions are
rejected, because no tensor reveals them. Each error names the file, the field and the fix. Source:
transformers 5.24, `models/qwen3_5`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.model.config_json import ConfigFields, ModelConfigError, read_json

COLOURS = 3
"""Number of colours in a pixel: red, green, blue."""

_TYPES = frozenset({"qwen3_5", "qwen3_5_vision", "qwen3_5_moe", "qwen3_5_moe_vision"})
"""Supported values of `vision_config.model_type`. Older checkpoints have the outer object's model
type there."""
_ONLY: tuple[tuple[str, object], ...] = (
    ("hidden_act", "gelu_pytorch_tanh"),
    ("in_channels", COLOURS),
    ("deepstack_visual_indexes", []),
)
_PLACEHOLDERS = ("image_token_id", "video_token_id")
_THETA = 10000.0
_SECTIONS = (11, 11, 10)
_NORM_EPS = 1e-6
"""The eps of every LayerNorm in the tower. No config has a field for it."""


@dataclass(frozen=True)
class PictureTokens:
    """Token ids around and inside a picture. start, end: tokens before and after a picture. image,
    video: the placeholder repeated for each token of an image, or of a pair of video frames."""

    start: int
    end: int
    image: int
    video: int


@dataclass(frozen=True)
class VisionConfig:
    """Shape of a vision tower.

    depth: number of blocks. hidden, intermediate: width of a patch's hidden state, and width inside
    the MLP. heads: number of attention heads, of equal size. out_hidden: width of the tower's
    output, equal to the language model's. patch: side of a patch in pixels. frames: video frames in
    a patch. merge: side of a token in patches. side: side of the square table of learned positions.
    rotary_sections: numbers of the language model's rotary pairs for frames, rows and columns.
    """

    depth: int
    hidden: int
    heads: int
    intermediate: int
    out_hidden: int
    patch: int
    frames: int
    merge: int
    side: int
    rope_theta: float
    norm_eps: float
    rotary_sections: tuple[int, int, int]
    tokens: PictureTokens

    @staticmethod
    def load(directory: Path | str) -> "VisionConfig | None":
        """Return the tower's shape, read from a folder's config.json; None for a text-only
        checkpoint. Raises ModelConfigError."""
        path = Path(directory) / "config.json"
        return VisionConfig.from_dict(read_json(path), str(path))

    @staticmethod
    def from_dict(raw: dict[str, Any], source: str = "config") -> "VisionConfig | None":
        """Read the tower's shape from a parsed config.json. source: the file's name in error
        messages. Return None for a text-only checkpoint. Raises ModelConfigError."""
        outer = ConfigFields(raw, source)
        vision = outer.object("vision_config")
        return None if vision is None else _read(outer, vision)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def patch_values(self) -> int:
        """Return the number of values in a patch: colours x frames x rows x columns."""
        return COLOURS * self.frames * self.patch * self.patch

    @property
    def merged(self) -> int:
        """Return the number of patches in one token."""
        return self.merge * self.merge

    @property
    def constants(self) -> str:
        """Return a text of the settings with an effect on a picture's keys and values but none on
        the weights. Nodes with a tower compare their texts."""
        shape = f"patches of {self.patch} pixels x {self.frames} frames, merged by {self.merge}"
        axes = "/".join(map(str, self.rotary_sections))
        return f"{shape}; {self.heads} heads of base {self.rope_theta!r}; positions by {axes} pairs"


def placeholder_ids(directory: Path | str) -> frozenset[int]:
    """Return the token ids that stand for pictures, from the outer object of config.json. Return
    none for a checkpoint of text only, and for a folder without a readable config. Raises
    ModelConfigError."""
    path = Path(directory) / "config.json"
    try:
        outer = ConfigFields(read_json(path), str(path))
    except ModelConfigError:
        # The reader of the model's shape reports this. A folder of text files alone may be read.
        return frozenset()
    found = {name: outer.get(name) for name in _PLACEHOLDERS}
    for name, token in found.items():
        if token is not None and (type(token) is not int or token < 0):
            raise outer.error(name, f"is {token!r:.80}", "copy it from the published config")
    return frozenset(token for token in found.values() if token is not None)


def _read(outer: ConfigFields, vision: ConfigFields) -> VisionConfig:
    kind = vision.get("model_type")
    if kind not in _TYPES:
        known = ", ".join(sorted(_TYPES))
        raise vision.error("model_type", f"is {kind!r:.80}, an unknown tower", f"use {known}")
    for name, only in _ONLY:
        vision.require(name, only)
    config = VisionConfig(
        depth=vision.size("depth"),
        hidden=vision.size("hidden_size"),
        heads=vision.size("num_heads"),
        intermediate=vision.size("intermediate_size"),
        out_hidden=vision.size("out_hidden_size"),
        patch=vision.size("patch_size"),
        frames=vision.size("temporal_patch_size"),
        merge=vision.size("spatial_merge_size"),
        side=_side(vision),
        rope_theta=_theta(vision),
        norm_eps=_NORM_EPS,
        rotary_sections=_sections(outer),
        tokens=_tokens(outer),
    )
    _check(config, outer, vision)
    return config


def _side(vision: ConfigFields) -> int:
    places = vision.size("num_position_embeddings")
    side = math.isqrt(places)
    if side * side != places:
        raise vision.error(
            "num_position_embeddings", f"is {places}, not a square", "published models have 2304"
        )
    return side


def _theta(vision: ConfigFields) -> float:
    rope = vision.object("rope_parameters")
    if rope is None:
        return _THETA
    kind = rope.get("rope_type", "axial")
    if kind not in ("axial", "default"):
        raise rope.error("rope_type", f"is {kind!r:.80}", "only 'axial' is supported")
    return rope.number("rope_theta", _THETA)


def _sections(outer: ConfigFields) -> tuple[int, int, int]:
    """Return the rotary sections: numbers of pairs for frames, rows and columns. If a scaling for
    long contexts lacks them, use those of the published models, as transformers does."""
    text = outer.object("text_config") or outer
    rope = text.object("rope_scaling") or text.object("rope_parameters")
    if rope is None:
        return _SECTIONS
    rope.require("mrope_interleaved", True)
    found = rope.get("mrope_section", [*_SECTIONS])
    sizes = found if isinstance(found, list) else []
    if len(sizes) != 3 or not all(type(size) is int and size >= 0 for size in sizes):
        raise rope.error("mrope_section", f"is {found!r:.80}", "use three counts of pairs")
    return (sizes[0], sizes[1], sizes[2])


def _tokens(outer: ConfigFields) -> PictureTokens:
    text = outer.object("text_config") or outer
    vocab = text.size("vocab_size")
    names = ("vision_start_token_id", "vision_end_token_id", *_PLACEHOLDERS)
    ids: list[int] = []
    for name in names:
        found = outer.get(name)
        if found is None:
            raise outer.error(name, "is missing", "copy it from the published config")
        if type(found) is not int or not 0 <= found < vocab:
            raise outer.error(name, f"is {found!r:.80}", f"use an id below {vocab}")
        if found in ids:
            raise outer.error(name, f"is {found}, another field's id", "give each its own")
        ids.append(found)
    return PictureTokens(*ids)


def _check(config: VisionConfig, outer: ConfigFields, vision: ConfigFields) -> None:
    # Half of a head turns with the row and half with the column, in pairs of elements.
    if config.hidden % config.heads or config.head_dim % 4:
        raise vision.error(
            "num_heads",
            f"cuts hidden_size {config.hidden} into {config.heads} heads",
            "choose heads of a multiple of 4 elements",
        )
    width = (outer.object("text_config") or outer).size("hidden_size")
    if config.out_hidden != width:
        raise vision.error(
            "out_hidden_size",
            f"is {config.out_hidden}, the language model's width is {width}",
            "make the two agree",
        )
