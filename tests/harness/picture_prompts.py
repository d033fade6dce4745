"""Prompts with pictures for engines: golden ones, and their messages."""

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.vision.picture_file import PictureBounds, read_header
from tasuki.model.vision.pixels import PicturePatches
from tasuki.pycache.keys import PictureDigest, PictureSource
from tests.harness.covering import slow_behind
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.picture_goldens import PictureCase, PictureModel, golden_cases


def digest_of(name: str, patches: PicturePatches) -> PictureDigest:
    """Return the digest of a picture made from a file, or from one pair of a clip."""
    size = (patches.grid.rows, patches.grid.columns)
    return PictureSource("image", "exif", (name.encode(),), *size, "golden").digest


@cache
def golden_pictures(model: str, case: str) -> tuple[m.PromptPicture, ...]:
    """Return the pictures of a golden prompt, in their order."""
    loaded = PictureModel.load(model)
    found = loaded.case(case)
    patches = [
        (f"{item.values['files']}.{place}", one)
        for item in found.items
        for place, one in enumerate(loaded.patches(item))
    ]
    runs = loaded.layout(found).runs
    return tuple(
        m.PromptPicture(
            *(run.start, run.rows, run.columns),
            digest_of(name, one),
            one.levels.numpy(),
        )
        for run, (name, one) in zip(runs, patches, strict=True)
    )


@cache
def golden_case(model: str, case: str) -> PictureCase:
    return PictureModel.load(model).case(case)


def golden_submit(model: str, case: str, name: str | None = None, **changes: object) -> m.Submit:
    """Return a golden prompt's message. name: the request's; the case's by default."""
    values = golden_case(model, case).values
    pictures = golden_pictures(model, case)
    return submit(
        *(name or case, values["prompt"], len(values["greedy"])), pictures=pictures, **changes
    )


@cache
def file_pictures(model: str, case: str) -> tuple[m.PromptPicture, ...]:
    """Return the pictures of a golden prompt of images, in their order, each as the file sent by a
    client."""
    loaded = PictureModel.load(model)
    found = loaded.case(case)
    made = []
    for item, run in zip(found.items, loaded.layout(found).runs, strict=True):
        (name,) = item.values["files"]
        content = (loaded.folder / "images" / name).read_bytes()
        header = read_header(content, PictureBounds())
        size = loaded.rules.size(header.size)
        source = PictureSource(
            *("image", "exif", (hashlib.sha256(content).digest(),)),
            *(size.height, size.width, loaded.rules.constants),
        )
        coding, place = m.FileCoding.PLAIN, f"picture {name}"
        file = m.PictureFile(m.Media(content), coding, header.size.height, header.size.width, place)
        where = run.start, run.rows, run.columns
        made.append(m.PromptPicture(*where, source.digest, file=file, source=source))
    return tuple(made)


def image_cases(first: str) -> list[object]:
    """Return (model, case) of the goldens without clips. The case `first` of each checkpoint has no
    slow mark."""
    cases = {
        f"{model}-{case}": (model, case)
        for model, case in golden_cases()
        if case == "none"
        or all(item.values["kind"] == "image" for item in golden_case(model, case).items)
    }
    ordered = dict(sorted(cases.items(), key=lambda named: named[1][1] != first))
    return slow_behind(sum(case == first for _, case in cases.values()), ordered)


def file_submit(model: str, case: str, name: str | None = None, **changes: object) -> m.Submit:
    """Return a golden prompt's message, its pictures as files. name: the request's; the case's by
    default."""
    values = golden_case(model, case).values
    pictures = file_pictures(model, case)
    return submit(
        *(name or case, values["prompt"], len(values["greedy"])), pictures=pictures, **changes
    )


@cache
def _parts(config: EngineConfig) -> EngineParts:
    return build_parts(config)


def picture_engine(model: str, **changes: object) -> Lone:
    """Return an engine with an empty cache over a golden checkpoint with a tower. Equal settings
    share weights and arena, so one engine of them runs at a time."""
    config = engine_config(PictureModel.load(model).folder, **changes)
    return Lone(config, parts=_parts(config))


def ask(engine: Lone, message: m.Submit) -> list[int]:
    """Run the request to its end; return its tokens."""
    engine.post(message)
    engine.run()
    return engine.tokens(message.request_id)


def prefix_of(message: m.Submit, tokens: int, name: str, answer: int = 1) -> m.Submit:
    """Return a request for the first tokens of a prompt. A picture cut by the end is left out of
    the prompt, which ends before its opening token then."""
    for picture in message.pictures:
        if picture.start <= tokens < picture.run.end:
            tokens = picture.start - 1
    kept = tuple(picture for picture in message.pictures if picture.run.end <= tokens)
    return submit(name, message.prompt[:tokens].tolist(), answer, pictures=kept)


def tokens_of(prompt: Sequence[int]) -> np.ndarray:
    return np.asarray(prompt, dtype=np.int32)
