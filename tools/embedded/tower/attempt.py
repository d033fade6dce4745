"""One attempt to train a tower before a frozen trunk."""

import argparse
import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.vision.config import VisionConfig
from tools.training.graphed_step import Inputs, TrainingStep

from .dialogue import IGNORED, every_frame
from .drawn_scenes import Scenes
from .frozen_trunk import FrozenTrunk
from .scenes import Topic
from .trained_tower import TrainedTower


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
class Start:
    """Where a training begins. tower: is trained in place. scenes, trial: for training, and
    held-out ones; on the tower's device."""

    tower: TrainedTower
    trunk: FrozenTrunk
    config: VisionConfig
    scenes: Scenes
    trial: Scenes


class Attempt:
    """A training with one learning rate. Thread rule: one thread.

    best: copy of the tower with the highest share of right answers so far. loss: of the last
    evaluation. curve: all evaluations.
    """

    def __init__(
        self, start: Start, name: str, peak: float, settings: argparse.Namespace, clock: Clock
    ) -> None:
        """peak: highest learning rate."""
        self.name = name
        self.best = start.tower
        self.loss = math.inf
        self.curve: list[dict[str, Any]] = []
        self._start, self._peak, self._settings, self._clock = start, peak, settings, clock
        self._highest, self._index = (-1.0, 0.0), 0
        self._order = torch.Generator(start.scenes.tokens.device).manual_seed(settings.seed)

        def loss(inputs: Inputs) -> Tensor:
            scenes = Scenes(*inputs)
            return mean_loss(self._logits(start.tower, scenes), scenes)

        graphed = settings.device.startswith("cuda") and not settings.eager
        self._step = TrainingStep(
            start.tower, loss, settings.weight_decay, graphed=graphed, betas=(0.9, 0.98)
        )

    def run(self, until: float, *, falling: bool) -> None:
        """Train until a time of the clock. falling: the learning rate falls from its peak to near
        zero; else it stays."""
        for _ in self.improvements(until, falling=falling):
            pass

    def improvements(self, until: float, *, falling: bool = True) -> Iterator[None]:
        """Train as run() does. Yield after each evaluation with a new best tower."""
        settings, clock = self._settings, self._clock
        scenes = self._start.scenes
        begun, over = clock.seconds, False
        losses: list[float] = []
        while not over:
            share = (clock.seconds - begun) / max(until - begun, 1e-3)
            over = share >= 1
            if self._index % settings.evaluate_every == 0 or over:
                if self._evaluate(losses):
                    yield
                losses = []
            if over:
                return
            warm = min(1.0, (self._index + 1) / settings.warm_up)
            cosine = 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
            rate = self._peak * warm * (0.01 + 0.99 * cosine if falling else 1.0)
            rows = torch.randint(
                len(scenes.tokens),
                (settings.batch,),
                generator=self._order,
                device=self._order.device,
            )
            loss = self._step(scenes.chosen(rows).tensors, rate)
            # To wait for the device in each step would cost more than the step.
            if self._index % 10 == 0:
                losses.append(loss.item())
            self._index += 1

    def published(self) -> dict[str, Any]:
        """Return the scores of the best tower in its stored precision."""
        rounded = copy.deepcopy(self.best)
        with torch.no_grad():
            for parameter in rounded.parameters():
                parameter.copy_(parameter.bfloat16())
        return self._scores(rounded)

    def _evaluate(self, losses: list[float]) -> bool:
        """Add an evaluation to the curve. Return true if the tower is the best one so far."""
        found = self._scores(self._start.tower)
        trained = round(sum(losses) / len(losses), 4) if losses else None
        self.curve.append({"step": self._index, "train": trained, **found})
        self._clock.say(f"{self.name}: {self.curve[-1]}")
        self.loss = found["loss"]
        score = (found["right"], -self.loss)
        better = score > self._highest
        if better:
            self.best, self._highest = copy.deepcopy(self._start.tower), score
        return better

    @torch.no_grad()
    def _scores(self, tower: TrainedTower) -> dict[str, Any]:
        """Return the mean loss of the trial, and the share of right answers: of all, and by
        topic."""
        trial, batch = self._start.trial, self._settings.batch
        losses: list[Tensor] = []
        right, asked = [0] * len(Topic), [0] * len(Topic)
        for first in range(0, len(trial.tokens), batch):
            rows = torch.arange(first, min(first + batch, len(trial.tokens)))
            part = trial.chosen(rows.to(trial.tokens.device))
            logits = self._logits(tower, part)
            losses.append(mean_loss(logits, part))
            used = part.targets != IGNORED
            wrong = used & (logits.argmax(-1) != part.targets)
            for number in range(self._settings.turns):
                own = used & (part.answers == number)
                for topic in range(len(Topic)):
                    there = (own & (part.topics == topic)).any(1)
                    asked[topic] += int(there.sum())
                    right[topic] += int((there & ~(wrong & own).any(1)).sum())
        shares = {
            str(topic): round(hits / count, 3)
            for topic, hits, count in zip(Topic, right, asked, strict=True)
            if count
        }
        return {
            "loss": round(torch.stack(losses).mean().item(), 4),
            "right": round(sum(right) / sum(asked), 4),
            **shares,
        }

    def _logits(self, tower: TrainedTower, scenes: Scenes) -> Tensor:
        """Return the logits [B, K, vocab] float32 of the answers' tokens."""
        trunk, tokens = self._start.trunk, scenes.tokens.long()
        rows = tower(every_frame(scenes.levels, self._start.config))
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
