"""The files of a golden model's folder: config, weights, prompts with their answers, arrays.

Invariant: equal values give equal bytes, so a rebuild shows the changes.
"""

import filecmp
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from tools.goldens.reference import Answer, Reference
from tools.goldens.shapes import Case, Shape
from tools.goldens.weights import draft_head

NAMES = ("config.json", "model.safetensors", "golden.json", "golden.npz")
TRIES = 2000
TOLERANCE = {
    "fp32_hidden_abs": 2e-4,
    "fp32_logits_abs": 1e-3,
    "fp32_recurrent_abs": 2e-4,
    "fp32_conv_abs": 5e-5,
    "greedy_fp32": "exact",
    "bf16_argmax_agreement_min": 0.8,
}


def write_model(shape: Shape, folder: Path) -> int:
    """Write a golden model's folder, and return the number of bytes written. Raises RuntimeError if
    every prompt comes too near a tie."""
    folder.mkdir(parents=True, exist_ok=True)
    reference = Reference(shape)
    weights = {
        name if name == "lm_head.weight" else shape.prefix + name.removeprefix("model."): tensor
        for name, tensor in reference.weights.items()
    }
    if shape.mtp:
        weights |= draft_head(shape)
    save_file(weights, folder / "model.safetensors")
    _write_json(folder / "config.json", _config(shape))
    random = np.random.default_rng(shape.seed)
    prompts: dict[str, list[int]] = {}
    entries, arrays = [], {}
    for case in shape.cases:
        prompt, answer = _prompt(reference, shape, case, prompts, random)
        prompts[case.name] = prompt
        margin = round(answer.margin, 4)
        entries.append(
            {"name": case.name, "prompt": prompt, "greedy": answer.greedy, "min_margin": margin}
        )
        arrays |= {f"{case.name}.{name}": array for name, array in answer.arrays.items()}
    made_with = {name: version(name).split("+")[0] for name in ("transformers", "torch", "numpy")}
    document = {"seed": shape.seed, "made_with": made_with, "tolerance": TOLERANCE}
    _write_json(folder / "golden.json", document | {"cases": entries})
    # savez gives every member the same date.
    np.savez(folder / "golden.npz", **dict(sorted(arrays.items())))
    return sum((folder / name).stat().st_size for name in NAMES)


def differing(made: Path, kept: Path) -> list[str]:
    """Return the paths below either folder with differing or missing files."""
    if made == kept:
        return []
    names = {path.relative_to(root) for root in (made, kept) for path in root.glob("*/*")}
    return [
        str(name)
        for name in sorted(names)
        if not (made / name).is_file()
        or not (kept / name).is_file()
        or not filecmp.cmp(made / name, kept / name, shallow=False)
    ]


def _prompt(
    reference: Reference,
    shape: Shape,
    case: Case,
    prompts: dict[str, list[int]],
    random: np.random.Generator,
) -> tuple[list[int], Answer]:
    start = [] if case.extends is None else prompts[case.extends]
    for _ in range(TRIES):
        more = random.integers(0, shape.text["vocab_size"], case.prompt_tokens - len(start))
        prompt = [*start, *more.tolist()]
        answer = reference.answer(case, prompt)
        if answer is not None:
            return prompt, answer
    raise RuntimeError(f"{shape.name}: {TRIES} prompts of {case.name} came near a tie")


def _config(shape: Shape) -> dict[str, Any]:
    if shape.prefix == "model.":
        return {"architectures": ["Qwen3_5ForCausalLM"], **shape.text}
    family = "Qwen3_5Moe" if shape.moe else "Qwen3_5"
    return {
        "architectures": [f"{family}ForConditionalGeneration"],
        "language_model_only": True,
        "model_type": shape.text["model_type"].removesuffix("_text"),
        "text_config": shape.text,
        "tie_word_embeddings": shape.text["tie_word_embeddings"],
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, sort_keys=True) + "\n")
