"""Writes the results of transformers for contexts longer than the training: angles and logits under
YaRN.

The weights are a golden model's own; only the position settings of its config are changed. Angles
are of heads as wide as published ones.
"""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.goldens.reference import Arrays, Reference, rotary_angles
from tools.goldens.shapes import Shape

NAMES = ("stretched.json", "stretched.npz")
HEAD_DIM = 256
PROMPT_TOKENS = 200
KEPT_ROWS = 4
POSITIONS = (
    *(0, 1, 2, 63, 64, 65, 200, 1000, 4095, 32_768),
    *(131_071, 262_143, 262_144, 524_288, 999_999, 1_010_000),
)


def _of(factor: float, original: int) -> dict[str, Any]:
    return {"factor": factor, "original_max_position_embeddings": original}


_CARD = {
    "mrope_interleaved": True,
    "mrope_section": [3, 3, 2],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000.0,
    "rope_type": "yarn",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "card": {"rope_parameters": _CARD | _of(4.0, 262_144)},
    "short": {"rope_parameters": _CARD | _of(16.0, 64)},
    "old-key": {
        "rope_parameters": None,
        "rope_scaling": {"type": "yarn"} | _of(8.0, 128),
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
    },
    "both-keys": {"rope_scaling": {"rope_type": "yarn", "rope_theta": 5e5} | _of(8.0, 128)},
    "betas": {"rope_parameters": _CARD | _of(8.0, 64) | {"beta_fast": 4, "beta_slow": 0.25}},
    "not-truncated": {"rope_parameters": _CARD | _of(8.0, 512) | {"truncate": False}},
    "one-bound": {
        "rope_parameters": _CARD
        | _of(8.0, 512)
        | {"beta_fast": 2, "beta_slow": 2, "truncate": False}
    },
    "attention-factor": {"rope_parameters": _CARD | _of(8.0, 64) | {"attention_factor": 0.75}},
    "mscale": {
        "rope_parameters": _CARD | _of(40.0, 4096) | {"mscale": 0.707, "mscale_all_dim": 1.0}
    },
    "one-mscale": {"rope_parameters": _CARD | _of(40.0, 4096) | {"mscale": 0.707}},
    "ratio": {
        "rope_parameters": _CARD | {"factor": None},
        "original_max_position_embeddings": 512,
    },
    "unstated": {"rope_parameters": _CARD | {"factor": 4.0}},
}


def write_stretched(shape: Shape, folder: Path) -> int:
    """Write the goldens of longer contexts, and return the number of bytes written."""
    prompt = np.random.default_rng(shape.seed + 1).integers(
        0, shape.text["vocab_size"], PROMPT_TOKENS
    )
    arrays: Arrays = {}
    for name, changes in VARIANTS.items():
        # A copy, because transformers writes into its argument.
        stretched = replace(shape, text=json.loads(json.dumps(shape.text | changes)))
        logits = Reference(stretched).logits(prompt.tolist())
        arrays[f"{name}.logits"] = logits[-KEPT_ROWS:]
        wide = json.loads(json.dumps(shape.text | changes | {"head_dim": HEAD_DIM}))
        frequencies, cos, sin = rotary_angles(replace(shape, text=wide), torch.tensor(POSITIONS))
        arrays |= {
            f"{name}.frequencies": frequencies,
            f"{name}.cos": cos,
            f"{name}.sin": sin,
        }
    made_with = {name: version(name).split("+")[0] for name in ("transformers", "torch", "numpy")}
    document = {
        "made_with": made_with,
        "head_dim": HEAD_DIM,
        "positions": POSITIONS,
        "prompt": prompt.tolist(),
        "variants": VARIANTS,
    }
    (folder / NAMES[0]).write_text(json.dumps(document, sort_keys=True) + "\n")
    np.savez(folder / NAMES[1], **dict(sorted(arrays.items())))
    return sum((folder / name).stat().st_size for name in NAMES)
