"""Trains the embedded model's vision tower: `python -m tools.embedded.tower.train --out FOLDER`.

The language model is frozen: its loss's gradient passes through it to the picture's rows, and from
there to the tower. Scenes are drawn first, in several processes. A few attempts with other learning
rates begin, and the best of them goes on. One process, one GPU or a CPU.

Writes visual.safetensors (bfloat16) and tower.json (the record), again after each better
evaluation. They belong into the model's folder, beside model.safetensors.
"""

import argparse
import os
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import PIL
import torch
from safetensors.torch import save_file

from tasuki.model.vision.processor import Size as PixelSize
from tools.training.schedule import record_text

from .attempt import Attempt, Clock, Start
from .dialogue import Size
from .drawn_scenes import Drawing, draw, picture_shape
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
    attempts = []
    for peak, spread in settings.attempts:
        torch.manual_seed(settings.seed)
        tower = TrainedTower(config, rules.grid(PixelSize(SIDE, SIDE)), spread)
        start = Start(tower.to(settings.device), trunk, config, scenes, trial)
        attempt = Attempt(start, f"rate {peak:g}, spread {spread:g}", peak, settings, clock)
        if len(settings.attempts) > 1:
            attempt.run(clock.seconds + settings.try_seconds, falling=False)
        attempts.append(attempt)
    best = min(attempts, key=lambda attempt: attempt.loss)
    clock.say(f"goes on: {best.name}")
    for _ in best.improvements(settings.seconds):
        _write(settings, best, clock, drawn)
    _write(settings, best, clock, drawn)
    clock.say(f"published: {best.published()}")


def _write(settings: argparse.Namespace, best: Attempt, clock: Clock, drawn: float) -> None:
    tensors = {
        PREFIX + name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in best.best.state_dict().items()
    }
    save_file(tensors, settings.out / WEIGHTS, metadata={"format": "pt"})
    on_gpu = settings.device.startswith("cuda")
    record: dict[str, Any] = {
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "settings": {
            name: value for name, value in vars(settings).items() if name not in ("out", "model")
        },
        "chosen": best.name,
        "units": "loss nats a token of answers; right: share of answers with each token right, "
        "behind right answers, of scenes with held-out combinations",
        "published": best.published(),
        "curve": best.curve,
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
    parser.add_argument("--seconds", type=float, default=270, help="of the whole program")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--scenes", type=int, default=80_000, help="drawn for the training")
    parser.add_argument("--trial", type=int, default=1000, help="held-out scenes")
    parser.add_argument("--turns", type=int, default=3, help="questions about a scene at most")
    parser.add_argument("--tokens", type=int, default=152, help="of a dialogue at most")
    parser.add_argument("--answer-tokens", type=int, default=54, help="of its answers at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="to draw in")
    parser.add_argument("--batch", type=int, default=128, help="scenes of a step")
    parser.add_argument(
        "--attempts",
        type=_pairs,
        default=_pairs("0.001:0.2,0.003:0.2,0.003:0.03,0.01:0.03"),
        help="RATE:SPREAD,..: highest learning rates, and spreads of a row's elements at the start",
    )
    parser.add_argument("--try-seconds", type=float, default=15, help="of each attempt")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    return parser.parse_args()


def _pairs(text: str) -> list[tuple[float, float]]:
    pairs = [part.split(":") for part in text.split(",")]
    return [(float(rate), float(spread)) for rate, spread in pairs]


if __name__ == "__main__":
    main()
