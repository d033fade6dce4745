"""Flags of `tasuki bench pictures`."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import torch

from tasuki.bench.measure.results import OUT
from tasuki.utils.options import option

from .checkpoint import SHAPES

ROWS = ("checkpoint", "stages", "first", "beside", "resent", "text")
_SCREENSHOT_PIXELS = 1920 * 1080


@dataclass(frozen=True)
class PicturesConfig:
    rows: str = option("stages,first,beside", f"what to measure, of {','.join(ROWS)}")
    shape: str = option("9b", "a model with a vision tower, weights drawn at random", SHAPES)
    model: str = option("", "a checkpoint's folder in place of a drawn one")
    folder: str = option("", "keep the drawn checkpoint here, and use it again if it is there")
    device: str = option("cuda", "where to measure", ("cuda", "cpu"))
    width: int = option(1920, "of a picture, in pixels")
    height: int = option(1080, "of a picture, in pixels")
    picture_bytes: int = option(350_000, "about so many of a picture's file")
    first_number: int = option(0, "of the first picture; pictures of other numbers are new")
    counts: str = option("1,8", "pictures in one prompt")
    rounds: int = option(3, "measurements of each first token; their median counts")
    question_tokens: int = option(40, "of the text behind pictures")
    servers: str = option(
        "", "NAME=HOST:PORT,...: running servers of the same checkpoint, asked by turns"
    )
    node: str = option("own", "none: only --servers, the first of them first", ("own", "none"))
    node_flags: str = option("", "more flags of the own node, as '--arena-mib 40000'")
    streams: int = option(32, "beside: answers that run")
    prompt: int = option(1024, "beside: tokens of their prompts")
    seconds: float = option(8.0, "beside: each window")
    every: float = option(0.5, "beside: seconds between two arrivals")
    screenshots: int = option(20, "resent: pictures of a turn")
    turns: int = option(10, "resent: turns; text: of each session")
    sessions: int = option(4, "text: sessions at a time")
    out: str = option("", OUT)
    commit: str = option("", "of the source, where it is no git tree")

    def __post_init__(self) -> None:
        unknown = set(self.measured) - set(ROWS)
        if unknown or not self.measured:
            raise ValueError(f"rows {self.rows!r} is not of {', '.join(ROWS)}")
        for name in ("width", "height", "rounds", "streams", "screenshots", "turns", "sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not all(text.isdecimal() and int(text) for text in self.counts.split(",")):
            raise ValueError(f"counts {self.counts!r} must be numbers from 1 on, as 1,8")
        if self.node == "none" and not self.servers:
            raise ValueError("node none needs --servers NAME=HOST:PORT")
        for text in filter(None, self.servers.split(",")):
            if not all(text.partition("=")):
                raise ValueError(f"servers: {text!r} is not NAME=HOST:PORT")

    @property
    def measured(self) -> tuple[str, ...]:
        return tuple(filter(None, self.rows.split(",")))

    @property
    def picture_counts(self) -> tuple[int, ...]:
        return tuple(map(int, self.counts.split(",")))

    @property
    def addresses(self) -> dict[str, str]:
        """Return the addresses of the running servers, by name."""
        pairs = (text.partition("=") for text in filter(None, self.servers.split(",")))
        return {name: address for name, _, address in pairs}

    @property
    def own_flags(self) -> list[str]:
        return shlex.split(self.node_flags)

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def is_target(self) -> bool:
        """Return True if the targets of the bench hold: 1080p pictures, 9B on a GPU."""
        same = self.width * self.height == _SCREENSHOT_PIXELS
        return same and self.device == "cuda" and self.shape == "9b" and not self.model

    def kept_folder(self, temporary: Path) -> Path:
        """Return the checkpoint's folder. temporary: for a drawn one that is not kept."""
        return Path(self.model or self.folder or temporary)
