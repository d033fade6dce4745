"""The second stage of the tower's training: it learns to make given rows from pixels."""

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.vision.config import VisionConfig
from tools.training.graphed_step import Inputs, TrainingStep

from .attempt import Clock
from .dialogue import every_frame
from .drawn_scenes import Scenes
from .kind_rows import KindRows
from .trained_tower import TrainedTower


def match(
    tower: TrainedTower,
    kinds: KindRows,
    config: VisionConfig,
    scenes: Scenes,
    trial: Scenes,
    settings: argparse.Namespace,
    clock: Clock,
) -> float:
    """Train a tower until the program's seconds are over. Return its distance from the rows of the
    trial, as a share of their size."""
    size = torch.cat([kinds.colours.flatten(), kinds.shapes.flatten()]).detach().square().mean()

    def distance(levels: Tensor, numbers: Tensor) -> Tensor:
        wanted = kinds(numbers).detach()
        return functional.mse_loss(tower(every_frame(levels, config)), wanted) / size

    def loss(inputs: Inputs) -> Tensor:
        levels, numbers = inputs
        return distance(_varied(levels.float()), numbers)

    graphed = settings.device.startswith("cuda") and not settings.eager
    step = TrainingStep(tower, loss, settings.weight_decay, graphed=graphed, betas=(0.9, 0.98))
    device = scenes.tokens.device
    order = torch.Generator(device).manual_seed(settings.seed)
    begun, index = clock.seconds, 0
    while (share := (clock.seconds - begun) / max(settings.seconds - begun, 1e-3)) < 1:
        rows = torch.randint(
            len(scenes.tokens), (settings.match_batch,), generator=order, device=device
        )
        rate = settings.match_rate * min(1.0, (index + 1) / settings.warm_up) * (1.01 - share)
        found = step((scenes.levels[rows], scenes.kinds[rows]), rate)
        if index % settings.evaluate_every == 0:
            with torch.no_grad():
                off = distance(trial.levels[:500], trial.kinds[:500]).item()
            clock.say(f"match: step {index}, train {found.item():.4f}, held out {off:.4f}")
        index += 1
    with torch.no_grad():
        return distance(trial.levels, trial.kinds).item()


def _varied(levels: Tensor) -> Tensor:
    """Return the levels [B, patches, values] brighter or darker as a whole, and with noise."""
    gain = 1 + 0.06 * torch.randn(len(levels), 1, 1, device=levels.device)
    return (levels * gain + 6 * torch.randn_like(levels)).clamp(0, 255)
