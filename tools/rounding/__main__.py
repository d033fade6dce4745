"""`python -m tools.rounding`: the cost of FP8 rows in steps to the repository's trained models, and
of recurrent states in bfloat16 (`--of states`).

A model reads one text; for FP8 rows it is quantised to FP8 blocks. Each rounding is compared with
float32: mean KL of the next token's distribution in nats, and the share of equal top tokens.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.registry import load_config
from tasuki.model.forward import Batch
from tasuki.model.ops.linear.fp8_rows_reference import CodedProducts
from tasuki.model.ops.linear.reference import EXACT, Products
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tests.harness.goldens import Request, Workspace, final_hidden, logits_of
from tests.harness.qwen35 import load_weights

from .products import FloatScales, PowerScales, PowerScalesOfBoth
from .states import compare
from .texts import EMBEDDED, TOOL_CALLER, dialogues, prose

_MODELS: dict[str, tuple[Path, Callable[[int], list[int]]]] = {
    "embedded": (EMBEDDED, prose),
    "tool-caller": (TOOL_CALLER, dialogues),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="rounding", description=__doc__)
    parser.add_argument("--model", choices=_MODELS, default="embedded")
    parser.add_argument("--of", choices=("activations", "states"), default="activations")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the text")
    parser.add_argument("--bits", action="store_true", help="the twin to the bit too; it is slow")
    values = parser.parse_args()
    folder, text = _MODELS[values.model]
    tokens = text(values.tokens)
    if values.of == "states":
        print(f"{values.model}, {len(tokens)} tokens, states in bfloat16")
        compare(folder, tokens)
        return 0
    print(f"{values.model}, {len(tokens)} tokens, weights in FP8 blocks")
    roundings: dict[str, tuple[torch.dtype, Products]] = {
        "bf16": (torch.bfloat16, EXACT),
        "FP8 rows, float32 scales": (torch.float32, FloatScales()),
        "FP8 rows, scales of powers of two": (torch.float32, PowerScales()),
        "FP8 rows and weights, scales of powers of two": (torch.float32, PowerScalesOfBoth()),
    }
    if values.bits:
        roundings["FP8 rows, the instruction's bits"] = (torch.float32, CodedProducts())
    with tempfile.TemporaryDirectory() as temporary:
        quantised = Path(temporary) / "fp8"
        quantise_folder(folder, quantised, RECIPES["fp8"])
        want = log_probabilities(quantised, torch.float32, EXACT, tokens)
        for name, (dtype, products) in roundings.items():
            got = log_probabilities(quantised, dtype, products, tokens)
            divergence = (want.exp() * (want - got)).sum(-1).mean()
            equal = (want.argmax(-1) == got.argmax(-1)).double().mean()
            print(f"{name:<46} mean KL {divergence:.6f}  equal top tokens {equal:.4f}", flush=True)
    return 0


def log_probabilities(
    folder: Path, dtype: torch.dtype, products: Products, tokens: list[int]
) -> Tensor:
    """Return the log probabilities [T, vocab] float64 of the next tokens, of the checkpoint with
    such products."""
    config = load_config(folder)
    backend = TorchBackend(config, products=products)
    model = Qwen35Model(config, load_weights(folder, config, dtype), backend)
    request = Request(Workspace(model, slabs=96), len(tokens))
    hidden = final_hidden(model, Batch.pack([request.slice(tokens)]), request.workspace.arena)
    return logits_of(model, hidden).double().log_softmax(-1)


if __name__ == "__main__":
    raise SystemExit(main())
