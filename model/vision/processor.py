"""Rules of a checkpoint's picture processor: sizes, limits, normalisation.

PixelRules: preprocessor_config.json. ClipRules: video_preprocessor_config.json. Checkpoints saved
by newer libraries have both inside processor_config.json. `size.shortest_edge` and
`size.longest_edge` are counts of pixels, not edges. Settings that change pixels otherwise are
rejected by field. All is immutable, so free to share between threads.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from tasuki.model.config_json import ConfigFields, ModelConfigError

from .config import COLOURS, VisionConfig, read_object
from .grid import PictureError, PictureGrid

_MOST_ASPECT = 200
_BICUBIC = 3
_RESCALE = 1 / 255
_ONLY: tuple[tuple[str, object], ...] = (
    ("do_resize", True),
    ("do_rescale", True),
    ("do_normalize", True),
    ("resample", _BICUBIC),
)
_LEAST_DEVIATION = 1e-3
_FRAME_TOKENS = 768
_FLOOR = 1.05
"""Share of the least pixels below which a frame's limit does not sink."""


@dataclass(frozen=True)
class Size:
    """Height and width in pixels."""

    height: int
    width: int

    @property
    def pixels(self) -> int:
        return self.height * self.width


@dataclass(frozen=True)
class PixelRules:
    """Rules for one image. patch, merge, frames: as in VisionConfig. least, most: pixels after the
    resize. mean, deviation: by colour, in shares of the highest level."""

    patch: int
    merge: int
    frames: int
    least: int
    most: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    @staticmethod
    def load(directory: Path | str, config: VisionConfig) -> "PixelRules":
        """Read the rules of a checkpoint folder. Raises ModelConfigError, also if they disagree
        with the tower."""
        fields = _found(Path(directory), "preprocessor_config.json", "image_processor")
        if fields is None:
            raise ModelConfigError(
                f"{directory}: has no preprocessor_config.json; copy the published file, or serve "
                "text only"
            )
        return PixelRules.of(fields, config)

    @staticmethod
    def of(fields: ConfigFields, config: VisionConfig) -> "PixelRules":
        """Read the rules. Raises ModelConfigError."""
        _check_shape(fields, config)
        least, most = _limits(fields)
        return PixelRules(
            patch=config.patch,
            merge=config.merge,
            frames=config.frames,
            least=least,
            most=most,
            mean=_colours(fields, "image_mean", 0.0),
            deviation=_colours(fields, "image_std", _LEAST_DEVIATION),
        )

    @property
    def factor(self) -> int:
        """Return the pixels of a token's side."""
        return self.patch * self.merge

    @property
    def constants(self) -> str:
        """Return the settings that change pixels. Nodes compare this text."""
        shape = f"{self.patch} x {self.merge} x {self.frames}"
        return f"{shape}; mean {self.mean}, deviation {self.deviation}; bicubic as Pillow"

    def limited(self, pixels: int) -> "PixelRules":
        """Return the rules with a limit of `pixels` after the resize, if they allow more."""
        most = max(min(self.most, pixels), self.factor**2)
        return replace(self, least=min(self.least, most), most=most)

    def size(self, given: Size) -> Size:
        """Return the size after the resize. Raises PictureError."""
        _check_aspect(given)
        return _fitted(given, 1, 1, self, _Limits(self.least, self.most))

    def grid(self, given: Size) -> PictureGrid:
        """Return the grid of an image of a given size. Raises PictureError."""
        size = self.size(given)
        return PictureGrid(size.height // self.patch, size.width // self.patch, self.merge)


@dataclass(frozen=True)
class ClipRules:
    """Rules for a clip. least, most: pixels of all frames together after the resize. fps: frames
    sampled a second; fewest_frames, most_frames: of a clip. frame_tokens: limit of one frame; None:
    without."""

    least: int
    most: int
    fps: float
    fewest_frames: int
    most_frames: int
    frame_tokens: int | None

    @staticmethod
    def load(directory: Path | str, config: VisionConfig) -> "ClipRules | None":
        """Read the rules of a checkpoint folder; None if it has none for clips. Raises
        ModelConfigError."""
        name = "video_preprocessor_config.json"
        fields = _found(Path(directory), name, "video_processor")
        return None if fields is None else ClipRules.of(fields, config)

    @staticmethod
    def of(fields: ConfigFields, config: VisionConfig) -> "ClipRules":
        """Read the rules. Raises ModelConfigError."""
        _check_shape(fields, config)
        least, most = _limits(fields)
        capped = fields.flag("cap_pixels_per_frame", default=False)
        return ClipRules(
            least=least,
            most=most,
            fps=fields.number("fps", 2.0),
            fewest_frames=fields.size("min_frames", 4),
            most_frames=fields.size("max_frames", 768),
            frame_tokens=fields.size("max_video_tokens", _FRAME_TOKENS) if capped else None,
        )

    def size(self, frames: int, given: Size, rules: PixelRules) -> Size:
        """Return the size of each of a clip's frames after the resize. Raises PictureError."""
        # A single frame is doubled before it is resized.
        frames = max(frames, rules.frames)
        most = self.most
        if self.frame_tokens is not None:
            even = min(self.frame_tokens * rules.factor**2, self.most // frames)
            most = max(even, int(self.least * _FLOOR)) * frames
        factor = rules.factor
        if min(given.height, given.width) < factor:
            scale = max(factor / given.height, factor / given.width)
            given = Size(int(given.height * scale), int(given.width * scale))
        _check_aspect(given)
        counted = round(frames / rules.frames) * rules.frames
        return _fitted(given, frames, counted, rules, _Limits(self.least, most))


@dataclass(frozen=True)
class _Limits:
    least: int
    most: int


def _fitted(given: Size, frames: int, counted: int, rules: PixelRules, limits: _Limits) -> Size:
    """Return the size in whole tokens within the limits. counted: frames in whole groups."""
    factor, height, width = rules.factor, given.height, given.width
    # Python's round, half to even, as the processor's.
    found = Size(round(height / factor) * factor, round(width / factor) * factor)
    if counted * found.pixels > limits.most:
        shrink = math.sqrt((frames * height * width) / limits.most)
        return Size(
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if counted * found.pixels < limits.least:
        grow = math.sqrt(limits.least / (frames * height * width))
        return Size(
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return found


def _check_aspect(given: Size) -> None:
    short, long = sorted((given.height, given.width))
    if short < 1 or long / short > _MOST_ASPECT:
        raise PictureError(
            f"a picture of {given.width} x {given.height} pixels is more than {_MOST_ASPECT} times "
            "as long as wide; cut it into pieces"
        )


def _found(directory: Path, name: str, within: str) -> ConfigFields | None:
    """Return the fields of the processor's own file, else of the joint one; None without both."""
    path = directory / name
    if path.exists():
        return ConfigFields(read_object(path), str(path))
    joint = directory / "processor_config.json"
    if not joint.exists():
        return None
    return ConfigFields(read_object(joint), str(joint)).object(within)


def _check_shape(fields: ConfigFields, config: VisionConfig) -> None:
    for name, only in _ONLY:
        fields.require(name, only)
    if not math.isclose(fields.number("rescale_factor", _RESCALE), _RESCALE, rel_tol=1e-6):
        raise fields.error("rescale_factor", "is not 1/255", "only 1/255 is supported")
    of_tower = (
        ("patch_size", config.patch),
        ("temporal_patch_size", config.frames),
        ("merge_size", config.merge),
    )
    for name, wanted in of_tower:
        if fields.size(name) != wanted:
            raise fields.error(
                name, f"is {fields.get(name)}, the tower's is {wanted}", "make the two agree"
            )


def _limits(fields: ConfigFields) -> tuple[int, int]:
    """Return the least and the most pixels. `min_pixels` and `max_pixels` take precedence."""
    size = fields.object("size") or ConfigFields({}, fields.source, f"{fields.within}size.")
    least = _either(fields, "min_pixels", size, "shortest_edge")
    most = _either(fields, "max_pixels", size, "longest_edge")
    if least > most:
        raise size.error("shortest_edge", f"is {least}, above {most}", "exchange the two")
    return least, most


def _either(fields: ConfigFields, name: str, size: ConfigFields, inner: str) -> int:
    return size.size(inner) if fields.get(name) is None else fields.size(name)


def _colours(fields: ConfigFields, name: str, low: float) -> tuple[float, float, float]:
    found = fields.get(name)
    listed = found if isinstance(found, list) else []
    numbers = [value for value in listed if type(value) in (int, float) and low <= value <= 1]
    if len(listed) != COLOURS or len(numbers) != COLOURS:
        raise fields.error(name, f"is {found!r:.80}", f"use three numbers from {low:g} to 1")
    return (float(numbers[0]), float(numbers[1]), float(numbers[2]))
