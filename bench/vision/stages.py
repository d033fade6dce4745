"""Times of a picture's stages apart from each other, without a server: decode, resize, tower.

Decode and resize run as in the engine: a bounded process, then a thread, on a GPU with its resize.
The tower encodes one picture a call, all blocks at once.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

import torch

from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.timing import once_seconds
from tasuki.engine.messages import FileCoding, PictureFile
from tasuki.engine.pictures.file_levels import FileLevels, Levels
from tasuki.engine.pictures.placed import PlacedPicture
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import EncodeFlops
from tasuki.model.vision.decoding.decoders import PictureDecoders
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import assemble_tower
from tasuki.pycache.keys import PictureDigest

from .checkpoint import TowerSource
from .config import PicturesConfig
from .drawn import Screenshot

_TOWER_SECONDS = 0.028
"""Seconds of the tower for a picture of 1920 x 1080 by its FLOPs at 550 TFLOP/s."""
_MOST_TIMES = 1.6
_REPEATS = 5
_WAIT_SECONDS = 60.0
_LINE = "bench"
_HOST = torch.device("cpu")


def measure_stages(
    config: PicturesConfig,
    vision: VisionConfig,
    rules: PixelRules,
    screenshots: Sequence[Screenshot],
    report: Report,
) -> None:
    """Add a row for each stage, of the first screenshot and of all of them together."""
    patches = _decode_and_resize(config, rules, screenshots[:1], report)
    if len(screenshots) > 1:
        patches = _decode_and_resize(config, rules, screenshots, report)
    _measure_tower(config, vision, rules, patches, report)


def _decode_and_resize(
    config: PicturesConfig,
    rules: PixelRules,
    screenshots: Sequence[Screenshot],
    report: Report,
) -> list[PicturePatches]:
    """Measure decode and resize of all screenshots, sent at once. Return their patches."""
    name = _pictures(len(screenshots))
    sent, bounds = Size(config.height, config.width), PictureBounds()
    placed = [_placed(one, rules, sent) for one in screenshots]
    decoders = PictureDecoders()
    files = FileLevels(rules, decoders=decoders, device=config.torch_device)

    def decode() -> None:
        waits = [
            decoders.decode_and(_LINE, partial(_content, one), sent, bounds, len) for one in placed
        ]
        for wait in waits:
            wait.result(_WAIT_SECONDS)

    def both() -> list[Levels]:
        waits = [files.begin(_LINE, one) for one in placed]
        return [wait.result(_WAIT_SECONDS).levels for wait in waits if wait is not None]

    try:
        both()  # starts the processes
        decoded = median(once_seconds(decode, _HOST) for _ in range(_REPEATS))
        whole = median(once_seconds(both, _HOST) for _ in range(_REPEATS))
        found = both()
    finally:
        files.close()
    report.add(Row(f"decode {name}", decoded, extra=_each(decoded, screenshots)))
    rest = max(0.0, whole - decoded)
    report.add(Row(f"resize {name} and order its patches", rest, extra=_each(rest, screenshots)))
    return [PicturePatches(levels, one.grid) for levels, one in zip(found, placed, strict=True)]


def _placed(screenshot: Screenshot, rules: PixelRules, sent: Size) -> PlacedPicture:
    """Return the screenshot as the engine's picture. Its digest is its number."""
    grid = rules.grid(sent)
    file = PictureFile(
        data=screenshot.file,
        coding=FileCoding.PLAIN,
        height=sent.height,
        width=sent.width,
        place="bench",
    )
    digest = PictureDigest(screenshot.number.to_bytes(32, "little"))
    run = PictureRun(1, grid.token_rows, grid.token_columns)
    return PlacedPicture(run=run, grid=grid, digest=digest, levels=None, file=file)


def _content(picture: PlacedPicture) -> bytes:
    assert picture.file is not None
    return picture.file.content()


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
