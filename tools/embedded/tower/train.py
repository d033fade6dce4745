"""Trains the embedded model's vision tower: `python -m tools.embedded.tower.train --out FOLDER`.

The language model is frozen: its loss's gradient passes through it to the picture's rows, and from
there to the tower. Draws scenes in several processes first, then trains on them. Keeps the tower
with the best result on held-out scenes of its own. One process, one GPU or a CPU.

Writes visual.safetensors (bfloat16), tower.json (the record) and the model's changed text files.
They belong into the model's folder, beside model.safetensors.
"""

import argparse
import copy
import itertools
import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import PIL
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from tasuki.model.vision import processor
from tasuki.model.vision.config import VisionConfig
from tools.training.graphed_step import TrainingStep
from tools.training.schedule import rate, record_text

from .dialogue import IGNORED, Size, every_frame
from .drawn_scenes import Drawing, Scenes, draw, picture_shape
from .frozen_trunk import FrozenTrunk
from .prepare import SIDE, prepare
from .scenes import held_out_scene, training_scene
from .trained_tower import PREFIX, TrainedTower

_MODEL = Path(__file__).resolve().parents[3] / "model" / "embedded"
WEIGHTS = "visual.safetensors"
RECORD = "tower.json"


def main() -> None:
    settings = _settings()
    settings.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    prepare(settings.model, settings.out)
    config, rules = picture_shape(settings.out)
    trunk = FrozenTrunk.load(settings.model, settings.device, config.rotary_sections)
    tower = TrainedTower(config, rules.grid(processor.Size(SIDE, SIDE))).to(settings.device)
    with ProcessPoolExecutor(settings.processes, get_context("spawn")) as pool:
        work = Drawing(settings.out, settings.size)
        scenes = draw(work, training_scene, settings.scenes, settings.seed, pool)
        trial = draw(work, held_out_scene, settings.trial, settings.seed + 1, pool)
    drawn = time.monotonic() - started
    print(f"{drawn:6.0f} s {len(scenes.tokens)} scenes drawn", flush=True)
    scenes, trial = scenes.to(settings.device), trial.to(settings.device)
    run = Training(tower, trunk, config, settings, started)
    peak = settings.rates[0]
    if len(settings.rates) > 1:
        tries = {
            peak: run.train(scenes, trial, peak, settings.try_seconds) for peak in settings.rates
        }
        peak = min(tries, key=lambda peak: float(tries[peak].curve[-1]["loss"]))
    print(f"{time.monotonic() - started:6.0f} s training at rate {peak}", flush=True)
    trained = run.train(scenes, trial, peak, settings.seconds)
    best = trained.tower
    tensors = {
        PREFIX + name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in best.state_dict().items()
    }
    save_file(tensors, settings.out / WEIGHTS, metadata={"format": "pt"})
    rounded = copy.deepcopy(best).to(torch.bfloat16).float()
    record = {
        "seed": settings.seed,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "settings": {
            name: value
            for name, value in vars(settings).items()
            if name not in ("out", "model", "size")
        },
        "units": "loss nats a token of answers; right: share of answers with each token right, of "
        "scenes with held-out combinations, each behind right answers",
        "published": run.evaluate(rounded, trial),
        "rate": peak,
        "curve": trained.curve,
        "drawing_seconds": round(drawn, 1),
        "wall_seconds": round(time.monotonic() - started, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pillow": PIL.__version__,
        },
        "device": (
            torch.cuda.get_device_name() if settings.device != "cpu" else platform.machine()
        ),
    }
    (settings.out / RECORD).write_text(record_text(record), encoding="utf-8")
    print(json.dumps(record["published"]))


@dataclass(frozen=True)
class Trained:
    """A trained tower, and the curve of its results by step."""

    tower: TrainedTower
    curve: list[dict[str, Any]]


class Training:
    """One training of a tower before a frozen trunk. Thread rule: one thread."""

    def __init__(
        self,
        tower: TrainedTower,
        trunk: FrozenTrunk,
        config: VisionConfig,
        settings: argparse.Namespace,
        started: float,
    ) -> None:
        """started: time of the program's start, of time.monotonic()."""
        self._tower, self._trunk, self._config = tower, trunk, config
        self._settings, self._started = settings, started

    def train(self, scenes: Scenes, trial: Scenes, peak: float, seconds: float) -> Trained:
        """Train a copy of the tower from its start, until the steps or the seconds are over. Return
        the copy with the best share of right answers on `trial`. peak: highest learning rate."""
        settings, tower = self._settings, copy.deepcopy(self._tower)
        step = TrainingStep(
            tower,
            lambda inputs: _mean_loss(self._logits(tower, Scenes(*inputs)), Scenes(*inputs)),
            settings.weight_decay,
            graphed=settings.device.startswith("cuda") and not settings.eager,
            betas=(0.9, 0.98),
        )
        device = scenes.tokens.device
        order = torch.Generator(device).manual_seed(settings.seed)
        curve: list[dict[str, Any]] = []
        best, highest = tower, -1.0
        losses: list[float] = []
        begun = time.monotonic()
        for index in itertools.count():
            # The rate follows the clock, so that it ends low with the given time.
            share = max(index / settings.steps, (time.monotonic() - begun) / seconds)
            if index % settings.evaluate_every == 0 or share >= 1:
                found = self.evaluate(tower, trial)
                trained = round(sum(losses) / len(losses), 4) if losses else None
                curve.append({"step": index, "train": trained, **found})
                print(f"{time.monotonic() - self._started:6.0f} s {curve[-1]}", flush=True)
                losses = []
                if found["right"] >= highest:
                    best, highest = copy.deepcopy(tower), found["right"]
            if share >= 1:
                break
            warm = min(1.0, (index + 1) / settings.warm_up)
            now = warm * rate(int(share * 1000), 1000, peak, 1)
            rows = torch.randint(
                len(scenes.tokens), (settings.batch,), generator=order, device=device
            )
            loss = step(scenes.chosen(rows).tensors, now)
            # Waiting for the device each step would cost more than the step.
            if index % 10 == 0:
                losses.append(loss.item())
        return Trained(best, curve)

    @torch.no_grad()
    def evaluate(self, tower: TrainedTower, trial: Scenes) -> dict[str, float]:
        """Return the mean loss, and the share of right answers behind right ones."""
        losses, right, asked = [], 0, 0
        for first in range(0, len(trial.tokens), self._settings.batch):
            rows = torch.arange(first, min(first + self._settings.batch, len(trial.tokens)))
            part = trial.chosen(rows.to(trial.tokens.device))
            logits = self._logits(tower, part)
            losses.append(_mean_loss(logits, part))
            wrong = (logits.argmax(-1) != part.targets) & (part.targets != IGNORED)
            answers = int(part.answers.max()) + 1
            for number in range(answers):
                own = (part.answers == number) & (part.targets != IGNORED)
                there = own.any(1)
                asked += int(there.sum())
                right += int((there & ~(wrong & own).any(1)).sum())
        return {
            "loss": round(torch.stack(losses).mean().item(), 4),
            "right": round(right / asked, 4),
        }

    def _logits(self, tower: TrainedTower, scenes: Scenes) -> Tensor:
        """Return the logits [B, K, vocab] float32 of the answers' tokens."""
        trunk, tokens = self._trunk, scenes.tokens.long()
        rows = tower(every_frame(scenes.levels, self._config))
        embedded = functional.embedding(tokens, trunk.embedding)
        places = scenes.starts.long()[:, None] + torch.arange(rows.shape[1], device=tokens.device)
        inputs = embedded.scatter(1, _by_width(places, rows), rows)
        hidden = trunk.hidden(inputs, scenes.positions)
        return trunk.logits(hidden.gather(1, _by_width(scenes.places, hidden)))


def _by_width(index: Tensor, like: Tensor) -> Tensor:
    """Return an index [B, n] of rows as one of all their elements, [B, n, width]."""
    return index[..., None].expand(-1, -1, like.shape[-1])


def _mean_loss(logits: Tensor, scenes: Scenes) -> Tensor:
    return functional.cross_entropy(
        logits.flatten(0, 1), scenes.targets.flatten(), ignore_index=IGNORED
    )


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", type=Path, default=_MODEL, help="folder of the frozen model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--scenes", type=int, default=100_000, help="drawn for the training")
    parser.add_argument("--trial", type=int, default=1000, help="held-out scenes")
    parser.add_argument("--turns", type=int, default=3, help="questions about a scene at most")
    parser.add_argument("--tokens", type=int, default=144, help="of a dialogue at most")
    parser.add_argument("--answer-tokens", type=int, default=44, help="of its answers at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="to draw in")
    parser.add_argument("--batch", type=int, default=128, help="scenes of a step")
    parser.add_argument("--rates", type=_numbers, default=[2e-3], help="the best of these is used")
    parser.add_argument("--try-seconds", type=float, default=15, help="of each rate's trial")
    parser.add_argument("--seconds", type=float, default=200, help="of training at most")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of training at most")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    settings = parser.parse_args()
    settings.size = Size(settings.turns, settings.tokens, settings.answer_tokens)
    return settings


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
