"""The first stage of the tower's training: rows of kinds, learnt through the frozen trunk."""

import argparse
import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tools.training.graphed_step import Inputs, TrainingStep

from .dialogue import IGNORED
from .drawn_scenes import Scenes
from .frozen_trunk import FrozenTrunk
from .kind_rows import KindRows


class Clock:
    """The time since the start of the program."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print a text with the time."""
        print(f"{self.seconds:6.0f} s {text}", flush=True)


@dataclass(frozen=True)
class Attempt:
    """Settings of one attempt. rate: highest learning rate. spread: of a row's elements before the
    training. noise: of the rows, as a share of their size."""

    rate: float
    spread: float
    noise: float


@dataclass(frozen=True)
class Learnt:
    """The result of an attempt. scores: of the trial."""

    attempt: Attempt
    kinds: KindRows
    scores: dict[str, Any]


def learn(
    attempt: Attempt,
    kinds: KindRows,
    trunk: FrozenTrunk,
    scenes: Scenes,
    trial: Scenes,
    settings: argparse.Namespace,
    clock: Clock,
) -> Learnt:
    """Train the rows of kinds until `kind_seconds` are over."""

    def loss_of(inputs: Inputs) -> Tensor:
        batch = Scenes(*inputs)
        rows = kinds.blurred(batch.kinds, attempt.noise)
        return mean_loss(answer_logits(trunk, rows, batch), batch)

    graphed = settings.device.startswith("cuda") and not settings.eager
    step = TrainingStep(kinds, loss_of, settings.kind_decay, graphed=graphed, betas=(0.9, 0.98))
    device = scenes.tokens.device
    order = torch.Generator(device).manual_seed(settings.seed)
    begun, index, loss = clock.seconds, 0, math.nan
    few = scenes.chosen(torch.arange(len(trial.tokens), device=device))
    # Pictures are not used here, so they are not copied with each batch.
    scenes = scenes.blind()
    while (share := (clock.seconds - begun) / settings.kind_seconds) < 1:
        warm = min(1.0, (index + 1) / settings.warm_up)
        rate = attempt.rate * warm * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))
        chosen = torch.randint(
            len(scenes.tokens), (settings.kind_batch,), generator=order, device=device
        )
        found = step(scenes.chosen(chosen).tensors, rate)
        if index % 10 == 0:
            loss = found.item()
        if index % settings.kind_evaluate_every == 0:
            _say(attempt, kinds, trunk, few, trial, clock, index, loss)
        index += 1
    scores = _say(attempt, kinds, trunk, few, trial, clock, index, loss)
    return Learnt(attempt, copy.deepcopy(kinds), scores)


def _say(
    attempt: Attempt,
    kinds: KindRows,
    trunk: FrozenTrunk,
    few: Scenes,
    trial: Scenes,
    clock: Clock,
    index: int,
    loss: float,
) -> dict[str, Any]:
    seen = scored(trunk, lambda batch: kinds(batch.kinds), few)
    scores = scored(trunk, lambda batch: kinds(batch.kinds), trial)
    shares = f"seen {seen['right']}, held out {scores['right']}"
    clock.say(f"{attempt}: step {index}, loss {loss:.4f}, {shares}")
    return {"step": index, "train": round(loss, 4), "seen": seen["right"], **scores}


@torch.no_grad()
def scored(
    trunk: FrozenTrunk, rows: Callable[[Scenes], Tensor], scenes: Scenes, batch: int = 128
) -> dict[str, Any]:
    """Return the mean loss of scenes' answers, and the share of answers with each token right,
    behind right ones. rows: makes the rows of pictures."""
    losses: list[Tensor] = []
    right, asked = 0, 0
    for first in range(0, len(scenes.tokens), batch):
        last = min(first + batch, len(scenes.tokens))
        part = scenes.chosen(torch.arange(first, last, device=scenes.tokens.device))
        logits = answer_logits(trunk, rows(part), part)
        losses.append(mean_loss(logits, part))
        used = part.targets != IGNORED
        wrong = used & (logits.argmax(-1) != part.targets)
        for number in range(int(part.answers.max()) + 1):
            own = used & (part.answers == number)
            asked += int(own.any(1).sum())
            right += int((own.any(1) & ~(wrong & own).any(1)).sum())
    loss = torch.stack(losses).mean().item()
    return {"loss": round(loss, 4), "right": round(right / asked, 4)}


def answer_logits(trunk: FrozenTrunk, rows: Tensor, scenes: Scenes) -> Tensor:
    """Return the logits [B, K, vocab] float32 of the answers' tokens. rows [B, tokens, hidden]: of
    the pictures."""
    tokens = scenes.tokens.long()
    embedded = functional.embedding(tokens, trunk.embedding)
    places = scenes.starts.long()[:, None] + torch.arange(rows.shape[1], device=tokens.device)
    inputs = embedded.scatter(1, _by_width(places, rows), rows)
    hidden = trunk.hidden(inputs, scenes.positions)
    return trunk.logits(hidden.gather(1, _by_width(scenes.places, hidden)))


def mean_loss(logits: Tensor, scenes: Scenes) -> Tensor:
    """Return the mean loss of the answers' tokens, nats. logits [B, K, vocab]."""
    return functional.cross_entropy(
        logits.flatten(0, 1), scenes.targets.flatten(), ignore_index=IGNORED
    )


def _by_width(index: Tensor, like: Tensor) -> Tensor:
    """Return an index [B, n] of rows as one of all their elements, [B, n, width]."""
    return index[..., None].expand(-1, -1, like.shape[-1])
