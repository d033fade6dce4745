"""Trains the embedded model's vision tower: `python -m tools.embedded.tower.train --out FOLDER`.

The language model is frozen. First rows of each colour and each shape are learnt, by the gradient
through the model: half of a picture's rows have its colour, half its shape. A few attempts differ
in rate and noise, and the best one counts. Then the tower learns to make these rows from pixels.
Scenes are drawn before, in several processes. One process, one GPU or a CPU.

Writes visual.safetensors (bfloat16) and tower.json (the record). They belong into the model's
folder, beside model.safetensors.
"""

import argparse
import os
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import PIL
import torch
from safetensors.torch import save_file

from tasuki.model.vision.processor import Size as PixelSize
from tools.training.schedule import record_text

from .attempt import Attempt, Clock, Learnt, learn, scored
from .dialogue import Size, every_frame
from .drawn_scenes import Drawing, draw, picture_shape
from .frozen_trunk import FrozenTrunk
from .kind_rows import KindRows
from .matching import match
from .prepare import SIDE, prepare
from .scenes import held_out_scene, training_scene
from .trained_tower import PREFIX, TrainedTower

_MODEL = Path(__file__).resolve().parents[3] / "model" / "embedded"
WEIGHTS = "visual.safetensors"
RECORD = "tower.json"


def main() -> None:
    settings = _settings()
    settings.out.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder)
        prepare(settings.model, prepared)
        config, rules = picture_shape(prepared)
        work = Drawing(prepared, Size(settings.turns, settings.tokens, settings.answer_tokens))
        with ProcessPoolExecutor(settings.processes, get_context("spawn")) as pool:
            scenes = draw(work, training_scene, settings.scenes, settings.seed, pool)
            trial = draw(work, held_out_scene, settings.trial, settings.seed + 1, pool)
    drawn = clock.seconds
    clock.say(f"{settings.scenes} scenes drawn")
    scenes, trial = scenes.to(settings.device), trial.to(settings.device)
    trunk = FrozenTrunk.load(settings.model, settings.device, config.rotary_sections)
    grid = rules.grid(PixelSize(SIDE, SIDE))
    learnt: list[Learnt] = []
    for attempt in settings.attempts:
        torch.manual_seed(settings.seed)
        kinds = KindRows(grid.tokens, config.out_hidden, attempt.spread).to(settings.device)
        learnt.append(learn(attempt, kinds, trunk, scenes, trial, settings, clock))
    best = max(learnt, key=lambda found: (found.scores["right"], -found.scores["loss"]))
    clock.say(f"goes on: {best.attempt}, {best.scores}")
    tower = TrainedTower(config, grid, best.attempt.spread).to(settings.device)
    off = match(tower, best.kinds, config, scenes, trial, settings, clock)
    tensors = {
        PREFIX + name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in tower.state_dict().items()
    }
    save_file(tensors, settings.out / WEIGHTS, metadata={"format": "pt"})
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(parameter.bfloat16())
    published = scored(trunk, lambda batch: tower(every_frame(batch.levels, config)), trial)
    clock.say(f"off {off:.4f}, published: {published}")
    on_gpu = settings.device.startswith("cuda")
    record: dict[str, Any] = {
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "settings": {
            name: value
            for name, value in vars(settings).items()
            if name not in ("out", "model", "attempts")
        },
        "units": "loss nats a token of answers; right: share of answers with each token right, "
        "behind right answers, of scenes with held-out combinations; seen: of others; off: squared "
        "distance of rows, as a share of their size",
        "published": published,
        "off": round(off, 4),
        "chosen": asdict(best.attempt),
        "curve": [{**asdict(found.attempt), **found.scores} for found in learnt],
        "drawing_seconds": round(drawn, 1),
        "wall_seconds": round(clock.seconds, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pillow": PIL.__version__,
        },
        "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
    }
    (settings.out / RECORD).write_text(record_text(record), encoding="utf-8")


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", type=Path, default=_MODEL, help="folder of the frozen model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=230, help="of the whole program")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--scenes", type=int, default=50_000, help="drawn for the training")
    parser.add_argument("--trial", type=int, default=1000, help="held-out scenes")
    parser.add_argument("--turns", type=int, default=2, help="questions about a scene at most")
    parser.add_argument("--tokens", type=int, default=104, help="of a dialogue at most")
    parser.add_argument("--answer-tokens", type=int, default=20, help="of its answers at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="to draw in")
    parser.add_argument(
        "--attempts",
        type=_attempts,
        default=_attempts("0.01:0.03:0.1,0.03:0.03:0.1,0.03:0.03:0.3,0.01:0.2:0.1"),
        help="RATE:SPREAD:NOISE,..: learning rates of the first stage, spreads and noise of rows",
    )
    parser.add_argument("--kind-seconds", type=float, default=28, help="of each attempt")
    parser.add_argument("--kind-batch", type=int, default=48, help="dialogues of its step")
    parser.add_argument("--kind-decay", type=float, default=0.0, help="its weight decay")
    parser.add_argument("--kind-evaluate-every", type=int, default=400, help="steps")
    parser.add_argument("--match-rate", type=float, default=0.002, help="of the second stage")
    parser.add_argument("--match-batch", type=int, default=512, help="pictures of its step")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=400, help="steps")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    return parser.parse_args()


def _attempts(text: str) -> list[Attempt]:
    found = [[float(number) for number in part.split(":")] for part in text.split(",")]
    return [Attempt(*numbers) for numbers in found]


if __name__ == "__main__":
    main()
