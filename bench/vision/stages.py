"""Times of a picture's stages apart from each other, without a server: decode, resize, tower.

Decode and resize run as in the engine: a bounded process, then the decoders' threads. The tower
encodes one picture a call, all blocks at once.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import torch

from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.timing import once_seconds
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import EncodeFlops
from tasuki.model.vision.decoding.decoders import PictureDecoders, Pixels
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.pixels import PicturePatches, patches_of
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.model.vision.resample import resample
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import assemble_tower

from .checkpoint import TowerSource
from .config import PicturesConfig
from .drawn import Screenshot

_TOWER_SECONDS = 0.028
"""Seconds of the tower for a picture of 1920 x 1080 by its FLOPs at 550 TFLOP/s."""
_MOST_TIMES = 1.6
_REPEATS = 5
_WAIT_SECONDS = 60.0

Found = TypeVar("Found")


def measure_stages(
    config: PicturesConfig,
    vision: VisionConfig,
    rules: PixelRules,
    screenshots: Sequence[Screenshot],
    report: Report,
) -> None:
    """Add a row for each stage, of the first screenshot and of all of them together."""
    target = rules.size(Size(config.height, config.width))
    resized = [_decode_and_resize(config, rules, target, screenshots[:1], report)]
    if len(screenshots) > 1:
        resized.append(_decode_and_resize(config, rules, target, screenshots, report))
    _measure_tower(config, vision, rules, resized[-1], report)


def _decode_and_resize(
    config: PicturesConfig,
    rules: PixelRules,
    target: Size,
    screenshots: Sequence[Screenshot],
    report: Report,
) -> list[PicturePatches]:
    """Measure decode and resize of all screenshots, sent at once. Return their patches."""
    name = _pictures(len(screenshots))

    def patches(pixels: Pixels) -> PicturePatches:
        found = resample(torch.from_numpy(pixels), target.height, target.width)
        return patches_of([found] * rules.frames, rules)

    decoders = PictureDecoders()
    try:
        _all(config, decoders, screenshots[:1], patches)  # starts the processes
        decode, _ = _all(config, decoders, screenshots, lambda pixels: len(pixels))
        report.add(Row(f"decode {name}", decode, extra=_each(decode, screenshots)))
        both, found = _all(config, decoders, screenshots, patches)
        rest = max(0.0, both - decode)
        report.add(
            Row(f"resize {name} and order its patches", rest, extra=_each(rest, screenshots))
        )
    finally:
        decoders.close()
    return found


def _all(
    config: PicturesConfig,
    decoders: PictureDecoders,
    screenshots: Sequence[Screenshot],
    then: Callable[[Pixels], Found],
) -> tuple[float, list[Found]]:
    """Return the median seconds to decode all screenshots and call `then` on each, and the last
    results."""
    sent, bounds = Size(config.height, config.width), PictureBounds()

    def once() -> tuple[float, list[Found]]:
        began = time.perf_counter()
        waits = [
            decoders.decode_and("bench", lambda file=one.file: file, sent, bounds, then)  # type: ignore[misc]
            for one in screenshots
        ]
        found = [wait.result(_WAIT_SECONDS) for wait in waits]
        return time.perf_counter() - began, found

    runs = [once() for _ in range(_REPEATS)]
    return median(seconds for seconds, _ in runs), runs[-1][1]


def _measure_tower(
    config: PicturesConfig,
    vision: VisionConfig,
    rules: PixelRules,
    pictures: Sequence[PicturePatches],
    report: Report,
) -> None:
    device = config.torch_device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = assemble_tower(vision, TowerSource(device), dtype, device)
    tower = VisionTower(vision, weights, rules)
    flops = EncodeFlops.of(vision).picture(pictures[0].grid.patches)
    own = [PicturePatches(one.levels.to(device), one.grid) for one in pictures]
    for _ in range(2):
        tower.rows(own[0])
    for some in (own[:1], own) if len(own) > 1 else (own,):
        seconds = median(
            once_seconds(lambda some=some: [tower.rows(one) for one in some], device)  # type: ignore[misc]
            for _ in range(_REPEATS)
        )
        each = seconds / len(some)
        row = Row(
            f"tower, {_pictures(len(some))} of {some[0].grid.patches} patches",
            seconds,
            report.floors.of_flops(flops) * len(some),
            extra={"ms a picture": 1e3 * each, "TFLOP a picture": flops / 1e12},
        )
        if config.is_target:
            most = _MOST_TIMES * _TOWER_SECONDS
            row = row.asked((f"<= {1e3 * most:.1f} ms a picture", each <= most))
        report.add(row)


def _pictures(count: int) -> str:
    return f"{count} picture{'s' if count > 1 else ''}"


def _each(seconds: float, screenshots: Sequence[Screenshot]) -> dict[str, float]:
    return {"ms a picture": 1e3 * seconds / len(screenshots)}
