"""Rules of a checkpoint's picture processor: sizes, limits, normalisation.

PixelRules has the fields of preprocessor_config.json, ClipRules those of
video_preprocessor_config.json. Checkpoints saved by newer libraries have both inside
processor_config.json. `size.shortest_edge` and `size.longest_edge` are counts of pixels, not edges.
Other settings with an effect on pixels are rejected, and the error names the field. All is
immutable, so free to share between threads.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from tasuki.model.config_json import ConfigFields, ModelConfigError, read_json

from .config import COLOURS, VisionConfig
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
"""Factor of a clip's least pixels. The limit for one frame is never below the product."""

MOST_SHOWN_PIXELS = 4_000_000
"""Most pixels of a caller's picture after the resize. A larger one would hold a GPU for long."""


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
    """Rules for one image. patch, merge, frames: as in VisionConfig. least, most: least and largest
    number of pixels after the resize. mean, deviation: by colour, as fractions of the highest level
    (255)."""

    patch: int
    merge: int
    frames: int
    least: int
    most: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    @staticmethod
    def load(directory: Path | str, config: VisionConfig) -> "PixelRules":
        """Return the image rules of a checkpoint folder. Raises ModelConfigError, also without such
        rules, or if they disagree with the tower's config."""
        fields = _found(Path(directory), "preprocessor_config.json", "image_processor")
        if fields is None:
            raise ModelConfigError(
                f"{directory}: has no preprocessor_config.json; copy the published file, or serve "
                "text only"
            )
        return PixelRules.of(fields, config)

    @staticmethod
    def of(fields: ConfigFields, config: VisionConfig) -> "PixelRules":
        """Return the image rules in the fields of a processor config. Raises ModelConfigError."""
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
        """Return the side of a token in pixels."""
        return self.patch * self.merge

    @property
    def constants(self) -> str:
        """Return a text of the settings with an effect on pixels. Two nodes compare their texts."""
        shape = f"{self.patch} x {self.merge} x {self.frames}"
        return f"{shape}; mean {self.mean}, deviation {self.deviation}; bicubic as Pillow"

    def limited(self, pixels: int) -> "PixelRules":
        """Return the same rules with at most `pixels` pixels after the resize, but at least those
        of one token."""
        most = max(min(self.most, pixels), self.factor**2)
        return replace(self, least=min(self.least, most), most=most)

    def size(self, given: Size) -> Size:
        """Return the size of an image after the resize. given: its size before. Raises
        PictureError."""
        _check_aspect(given)
        return _fitted(given, 1, 1, self, _Limits(self.least, self.most))

    def grid(self, given: Size) -> PictureGrid:
        """Return the grid of patches for an image. given: its size before the resize. Raises
        PictureError."""
        return self.grid_of(self.size(given))

    def grid_of(self, size: Size) -> PictureGrid:
        """Return the grid of patches for an image of a size after the resize."""
        return PictureGrid(size.height // self.patch, size.width // self.patch, self.merge)


@dataclass(frozen=True)
class ClipRules:
    """Rules for a video clip. least, most: least and largest number of pixels of all frames
    together, after the resize. fps: frames sampled per second. fewest_frames, most_frames: limits
    on a clip's frames. frame_tokens: limit on one frame's tokens; None: no limit. frame_pixels: of
    one frame, after the resize; None: no limit."""

    least: int
    most: int
    fps: float
    fewest_frames: int
    most_frames: int
    frame_tokens: int | None
    frame_pixels: int | None = None

    @staticmethod
    def load(directory: Path | str, config: VisionConfig) -> "ClipRules | None":
        """Return the clip rules of a checkpoint folder; None if it has none. Raises
        ModelConfigError, also if its colours are not those of images: one tower has one rule."""
        name = "video_preprocessor_config.json"
        fields = _found(Path(directory), name, "video_processor")
        if fields is None:
            return None
        rules = PixelRules.load(directory, config)
        for colour, wanted in (("image_mean", rules.mean), ("image_std", rules.deviation)):
            if fields.get(colour) is not None and _colours(fields, colour, 0.0) != wanted:
                raise fields.error(
                    colour, f"is {fields.get(colour)}, of images {list(wanted)}", "make them agree"
                )
        return ClipRules.of(fields, config)

    @staticmethod
    def of(fields: ConfigFields, config: VisionConfig) -> "ClipRules":
        """Return the clip rules in the fields of a processor config. Raises ModelConfigError."""
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

    def limited(self, pixels: int) -> "ClipRules":
        """Return the same rules with at most `pixels` pixels of a frame after the resize."""
        return replace(self, frame_pixels=pixels)

    def size(self, frames: int, given: Size, rules: PixelRules) -> Size:
        """Return the size of each frame of a clip after the resize. frames: number of frames;
        given: their size before. Raises PictureError."""
        # A single frame is doubled before it is resized.
        frames = max(frames, rules.frames)
        most = self.most
        if self.frame_tokens is not None:
            even = min(self.frame_tokens * rules.factor**2, self.most // frames)
            most = max(even, int(self.least * _FLOOR)) * frames
        least, factor = self.least, rules.factor
        if self.frame_pixels is not None:
            most = min(most, max(self.frame_pixels, factor**2) * frames)
            least = min(least, most)
        if min(given.height, given.width) < factor:
            scale = max(factor / given.height, factor / given.width)
            given = Size(int(given.height * scale), int(given.width * scale))
        _check_aspect(given)
        counted = round(frames / rules.frames) * rules.frames
        return _fitted(given, frames, counted, rules, _Limits(least, most))


@dataclass(frozen=True)
class _Limits:
    least: int
    most: int


def _fitted(given: Size, frames: int, counted: int, rules: PixelRules, limits: _Limits) -> Size:
    """Return the size after the resize, in whole tokens and within the limits of pixels. frames:
    number of frames; counted: the same, rounded to whole groups."""
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
            math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
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
    """Return the fields of the processor's own config file, or else of processor_config.json; None
    without both."""
    path = directory / name
    if path.exists():
        return ConfigFields(read_json(path), str(path))
    joint = directory / "processor_config.json"
    if not joint.exists():
        return None
    return ConfigFields(read_json(joint), str(joint)).object(within)


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
    """Return the least and the largest number of pixels. `min_pixels` and `max_pixels` take
    precedence over `size`."""
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
