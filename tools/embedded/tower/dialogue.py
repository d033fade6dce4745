"""Scenes as token sequences for training: a picture, then questions and answers about it.

The texts are those of the embedded model's chat template. Only an answer's tokens count in the
loss, with the end of its turn. The picture stands before the first question or behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.pixels import image_patches
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.prompt_positions import PictureRun, PromptLayout

from .scenes import Colour, Exchange, Scene, Shape, exchanges

IGNORED = -100
"""Target of a token without a loss, as torch's cross entropy has it."""


@dataclass(frozen=True)
class Size:
    """Bounds of a sample. turns: questions at most. tokens: of the whole. answer_tokens: of all
    answers."""

    turns: int
    tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class Sample:
    """One scene with questions. levels [patches, patch_values / frames] uint8: one of the equal
    frames, by colour, row and column. tokens [T]. positions [3, T]. start: index of the picture's
    first token. places, targets [K]: index of the token before each token of an answer, and that
    answer's token, filled up with 0 and IGNORED. answers [K]: number of the answer, from 0. kind
    [2]: number of the figure's colour, and of its shape. All but levels are int64."""

    levels: Tensor
    tokens: Tensor
    positions: Tensor
    start: int
    places: Tensor
    targets: Tensor
    answers: Tensor
    kind: Tensor


class DialogueMaker:
    """Makes samples of scenes. Thread rule: one thread."""

    def __init__(self, tokenizer: Tokenizer, config: VisionConfig, rules: PixelRules) -> None:
        self._tokenizer, self._config, self._rules = tokenizer, config, rules

    def sample(self, scene: Scene, random: Random, size: Size) -> Sample:
        """Return a sample about a scene. Raises ValueError if it does not fit the size."""
        patches = image_patches(picture_tensor(scene), self._rules)
        grid = patches.grid
        asked = exchanges(scene, random)[: size.turns]
        tokens, answers, start = self._tokens(asked, grid, random)
        places = [place for answer in answers for place in answer]
        if len(tokens) > size.tokens or len(places) > size.answer_tokens:
            raise ValueError(f"{len(tokens)} tokens, {len(places)} of answers, are above {size}")
        layout = PromptLayout((PictureRun(start, grid.token_rows, grid.token_columns),))
        rest = size.answer_tokens - len(places)
        targets = [tokens[place + 1] for place in places] + [IGNORED] * rest
        owners = [number for number, answer in enumerate(answers) for _ in answer]
        return Sample(
            levels=one_frame(patches.levels, self._config),
            tokens=torch.tensor(tokens + [0] * (size.tokens - len(tokens))),
            positions=layout.positions(0, size.tokens),
            start=start,
            places=torch.tensor(places + [0] * rest),
            targets=torch.tensor(targets),
            answers=torch.tensor(owners + [0] * rest),
            kind=_kind_numbers(scene),
        )

    def _tokens(
        self, asked: Sequence[Exchange], grid: PictureGrid, random: Random
    ) -> tuple[list[int], list[range], int]:
        """Return the tokens of a dialogue, the places before each answer's tokens, and the place of
        the picture."""
        ids = self._config.tokens
        picture = [ids.start, *[ids.image] * grid.tokens, ids.end]
        tokens: list[int] = []
        answers: list[range] = []
        start = 0
        for number, exchange in enumerate(asked):
            begin, question = self._ids("<|im_start|>user\n"), self._ids(exchange.question)
            if number == 0:
                first = random.random() < _PICTURE_FIRST
                question = [*picture, *question] if first else [*question, *picture]
                start = len(begin) + question.index(ids.image)
            tokens += [*begin, *question, *self._ids("<|im_end|>\n<|im_start|>assistant\n")]
            answer = self._ids(exchange.answer + "<|im_end|>")
            answers.append(range(len(tokens) - 1, len(tokens) - 1 + len(answer)))
            tokens += [*answer, *self._ids("\n")]
        return tokens, answers, start

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _kind_numbers(scene: Scene) -> Tensor:
    kind = scene.figure.kind
    return torch.tensor([list(Colour).index(kind.colour), list(Shape).index(kind.shape)])


def picture_tensor(scene: Scene) -> Tensor:
    """Return the drawn scene [side, side, 3] uint8."""
    content = bytearray(scene.draw().tobytes())
    return torch.frombuffer(content, dtype=torch.uint8).view(scene.side, scene.side, 3)


def one_frame(levels: Tensor, config: VisionConfig) -> Tensor:
    """Return the first frame of patches [patches, patch_values], [patches, patch_values /
    frames]."""
    return levels.view(len(levels), 3, config.frames, -1)[:, :, 0].flatten(1)


def every_frame(levels: Tensor, config: VisionConfig) -> Tensor:
    """Return the patches [.., patch_values] of pictures given by one frame, as one_frame()."""
    frame = levels.unflatten(-1, (3, 1, -1))
    return frame.expand(*frame.shape[:-2], config.frames, -1).flatten(-3)


_PICTURE_FIRST = 0.75
