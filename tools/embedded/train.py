"""Trains the embedded model (the small model shipped with tasuki) and writes its checkpoint folder:
`python -m tools.embedded.train --package FILE.deb --out FOLDER`.

Owns schedule, regularisation and the record (training.json). Keeps the weights with the best result
on the held-out chapters, and stops once they no longer improve. One process, one GPU (a CPU works,
for days).
"""

import argparse
import copy
import itertools
import json
import math
import platform
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as functional
import transformers
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM

from tools.training import checkpoint
from tools.training.checkpoint import text_config
from tools.training.gated_delta import install
from tools.training.graphed_step import Inputs, TrainingStep
from tools.training.schedule import rate, record_text

from .conversation import ConversationMaker
from .corpus import Corpus, load_corpus
from .sample import sample

MAX_TOKENS = 32768
VOCABULARY = 2048
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def model_config(end_of_text: int) -> Any:
    """Return the config of about 7.9 M parameters, 16 MB in bfloat16: the smallest model running
    through the same kernels as published models.

    Head sizes (128 for GDN, 256 for attention), rotary share and ratios are those of Qwen3.5; only
    width, depth and vocabulary shrink.
    """
    return text_config(
        mrope_section=(11, 11, 10),
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        layer_types=[*["linear_attention"] * 3, "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=MAX_TOKENS,
        eos_token_id=end_of_text,
    )


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy (nats a token) of the tokens [B, T] after the first of each
    row."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context with bfloat16 matrix products on a GPU, and float32 elsewhere."""
    # A cached cast would outlive its graph.
    return torch.autocast(
        device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
    )


_SHORT, _LONG = 2048, 8192
_EXCERPT = "held_out.txt"
_EXCERPT_CHARACTERS = 4000


def main() -> None:
    settings = _settings()
    settings.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    install()

    corpus = load_corpus(settings.package)
    tokenizer = checkpoint.byte_bpe((chapter.text for chapter in corpus.train), VOCABULARY)
    checkpoint.save_tokenizer(tokenizer, settings.out, MAX_TOKENS, CHAT_TEMPLATE)
    train = ConversationMaker(corpus.train, tokenizer)
    held_out = ConversationMaker(corpus.held_out, tokenizer)
    validation = torch.tensor(held_out.epoch(_SHORT, random.Random(0)), device=device)

    end_of_text = checkpoint.special_id(tokenizer, checkpoint.END_OF_TEXT)
    turn_end = checkpoint.special_id(tokenizer, checkpoint.TURN_END)
    config = model_config(end_of_text)
    config.save_pretrained(settings.out)
    generation = checkpoint.generation_config(end_of_text, turn_end, temperature=0.8, top_p=0.95)
    generation.save_pretrained(settings.out)
    model = Qwen3_5ForCausalLM(config).to(device)
    _drop_branches(model, settings.dropout)

    started = time.monotonic()
    curve, best = _train(model, train, validation, settings, started)
    seconds = time.monotonic() - started

    tensors = checkpoint.published(best)
    checkpoint.save_weights(tensors, settings.out)
    excerpt = _write_excerpt(corpus, settings.out)
    long = torch.tensor(held_out.epoch(_LONG, random.Random(0)), device=device)
    torch.set_float32_matmul_precision("highest")
    shipped = Qwen3_5ForCausalLM.from_pretrained(settings.out, dtype=torch.float32).to(device)
    record = {
        "seed": settings.seed,
        "corpus": {
            "source": "janeaustenr 1.0.0 (Debian r-cran-janeaustenr): six novels",
            "sha256": corpus.sha256,
            "train_tokens": train.text_tokens,
            "held_out_tokens": held_out.text_tokens,
            "held_out_chapters": [f"{c.novel} {c.number + 1}" for c in corpus.held_out],
        },
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "settings": {
            name: value for name, value in vars(settings).items() if name not in ("package", "out")
        },
        "losses": "mean cross-entropy, nats a token; the published ones in float32 on the shipped "
        "bfloat16 weights, the curve's in training precision",
        "published_validation_loss": _loss(shipped, validation),
        "published_validation_loss_8192": _loss(shipped, long),
        "excerpt": {
            "file": _EXCERPT,
            "loss": _loss(shipped, torch.tensor([tokenizer.encode(excerpt).ids], device=device)),
        },
        "curve": curve,
        "wall_seconds": round(seconds, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
    }
    (settings.out / "training.json").write_text(record_text(record), encoding="utf-8")
    checkpoint.write_sums(settings.out)
    print(json.dumps({name: value for name, value in record.items() if name != "curve"}, indent=1))
    samples = settings.out.with_name(f"{settings.out.name}-samples.json")
    samples.write_text(json.dumps(sample(settings.out), indent=2), encoding="utf-8")


def _write_excerpt(corpus: Corpus, directory: Path) -> str:
    """Return the start of one held-out chapter, cut at a word; also writes it into the folder of
    the weights."""
    text = corpus.held_out[len(corpus.held_out) // 2].text[:_EXCERPT_CHARACTERS]
    excerpt = text[: text.rindex(" ")] + "\n"
    (directory / _EXCERPT).write_text(excerpt, encoding="utf-8")
    return excerpt


def _train(
    model: nn.Module,
    data: ConversationMaker,
    validation: Tensor,
    settings: argparse.Namespace,
    started: float,
) -> tuple[list[dict[str, float | None]], nn.Module]:
    """Train the model, perhaps ending early. Returns the loss curve and the weights with the best
    result on `validation`."""

    def of_batch(inputs: Inputs) -> Tensor:
        (tokens,) = inputs
        with mixed_precision(tokens.device):
            return next_token_loss(model, tokens)

    graphed = validation.device.type == "cuda"
    step = TrainingStep(model, of_batch, settings.weight_decay, graphed=graphed)
    batches = _batches(data, settings)
    steps = settings.epochs * data.text_tokens // settings.batch_tokens
    curve: list[dict[str, float | None]] = []
    best, lowest, behind = model, math.inf, 0
    losses: list[Tensor] = []
    for index in range(steps + 1):
        if index % settings.evaluate_every == 0 or index == steps:
            with mixed_precision(validation.device):
                loss = _loss(model, validation)
            curve.append(
                {
                    "step": index,
                    "train": round(torch.stack(losses).mean().item(), 4) if losses else None,
                    "validation": round(loss, 4),
                }
            )
            print(f"{time.monotonic() - started:6.0f} s {curve[-1]}", flush=True)
            losses = []
            behind += 1
            if loss < lowest:
                best, lowest, behind = copy.deepcopy(model), loss, 0
            over_time = time.monotonic() - started > settings.seconds
            if behind >= settings.patience or over_time:
                break
        if index < steps:
            now = rate(index, steps, settings.rate, settings.warm_up)
            losses.append(step((next(batches).to(validation.device),), now))
    return curve, best


def _batches(data: ConversationMaker, settings: argparse.Namespace) -> Iterator[Tensor]:
    """Yield batches of batch_tokens tokens each, without end; every fourth has long sequences."""
    chooser = random.Random(settings.seed)

    def sequences(length: int) -> Iterator[list[int]]:
        while True:
            epoch = data.epoch(length, chooser)
            chooser.shuffle(epoch)
            yield from epoch

    short, long = sequences(_SHORT), sequences(_LONG)
    for index in itertools.count():
        source, length = (long, _LONG) if index % 4 == 3 else (short, _SHORT)
        yield torch.tensor(list(itertools.islice(source, settings.batch_tokens // length)))


def _drop_branches(model: nn.Module, share: float) -> None:
    """Add dropout on each branch's addition to the residual stream and on embeddings. transformers'
    class has none, and without it a million tokens are memorised."""

    def drop(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        return functional.dropout(output, share, module.training)

    for name, module in model.named_modules():
        if name.endswith(("out_proj", "o_proj", "down_proj", "embed_tokens")):
            module.register_forward_hook(drop)


@torch.no_grad()
def _loss(model: nn.Module, tokens: Tensor) -> float:
    """Return the mean loss over tokens [N, T] of the model in its own precision, without
    dropout."""
    training = model.training
    model.eval()
    parts = [next_token_loss(model, part).item() * len(part) for part in tokens.split(4)]
    model.train(training)
    return sum(parts) / len(tokens)


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="r-cran-janeaustenr_*.deb")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=2.0)
    parser.add_argument("--dropout", type=float, default=0.35)
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=100, help="steps")
    parser.add_argument("--patience", type=int, default=8, help="evaluations without a better one")
    parser.add_argument("--seconds", type=float, default=600, help="stop at the next evaluation")
    return parser.parse_args()


if __name__ == "__main__":
    main()
