"""Parts common to all trainings: the learning rate at each step, the optimiser's groups, the
record."""

import json
import math
from typing import Any

from torch import nn


def rate(step: int, steps: int, peak: float, warm_up: int, last: float = 0.01) -> float:
    """Return the learning rate at `step`: linear warm-up over `warm_up` steps, then a cosine to the
    share `last` of the peak."""
    warm = min(1.0, (step + 1) / warm_up)
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return float(peak * warm * (last + (1 - last) * cosine))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups for an optimiser: only matrices have weight decay."""
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def record_text(record: dict[str, Any]) -> str:
    """Return the JSON record of a training, indented, with one line for each point of its
    `curve`."""
    curve = record["curve"]
    head = json.dumps({**record, "curve": []}, indent=1)
    points = ",\n".join(f"  {json.dumps(point)}" for point in curve)
    return head.replace('"curve": []', f'"curve": [\n{points}\n ]') + "\n"
