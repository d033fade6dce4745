"""Trains the draft layer of the embedded model (the small model shipped with tasuki): `python -m
tools.embedded.train_draft_head --package FILE.deb --out FOLDER`.

The model is frozen. The product computes its hidden states once, for a few ways of cutting the text
into chats. The layer is then trained to predict the model's own predictions, three tokens ahead.
Keeps the weights with the best result on the held-out chapters. One process, one GPU or a CPU.
"""

import argparse
import copy
import json
import math
import platform
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tools.training.checkpoint import DRAFT_HEAD, DRAFT_RECORD
from tools.training.schedule import parameter_groups, rate, record_text

from .conversation import ConversationMaker
from .corpus import Corpus, CorpusError, load_corpus
from .draft_head import STEP_WEIGHTS, Batch, DraftHead, StepScores, loss, scores
from .trunk import Trunk

_MODEL = Path(__file__).resolve().parents[2] / "model" / "embedded"


@dataclass(frozen=True)
class Texts:
    """Texts with the model's states. tokens: token ids, [N, T] int64. hidden: the model's hidden
    states [N, T, hidden], in its dtype."""

    tokens: Tensor
    hidden: Tensor


def main() -> None:
    settings = _settings()
    settings.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    corpus = load_corpus(settings.package)
    _check_split(corpus, settings.model)
    tokenizer = Tokenizer.from_file(str(settings.model / "tokenizer.json"))
    trunk = Trunk(settings.model, settings.trunk_device or settings.device, settings.threads)
    chooser = random.Random(settings.seed)
    train = ConversationMaker(corpus.train[: settings.chapters], tokenizer)
    held_out = ConversationMaker(corpus.held_out[: settings.chapters], tokenizer)
    validation = _texts(trunk, held_out.epoch(settings.length, random.Random(0)), settings.device)
    cuts = [train.epoch(settings.length, chooser) for _ in range(settings.cuts)]
    texts = _texts(trunk, [sequence for cut in cuts for sequence in cut], settings.device)
    print(f"{time.monotonic() - started:6.0f} s {tuple(texts.hidden.shape)} states", flush=True)

    head = DraftHead(trunk.config).to(settings.device)
    embedding = trunk.embedding.detach().float().to(settings.device)
    curve, best = _train(head, embedding, texts, validation, settings, started)
    tensors = {
        f"mtp.{name}": tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in best.state_dict().items()
    }
    save_file(tensors, settings.out / DRAFT_HEAD, metadata={"format": "pt"})
    on_gpu = settings.device != "cpu"
    record = {
        "seed": settings.seed,
        "corpus": {"sha256": corpus.sha256, "split": "the model's: training.json"},
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "step_weights": STEP_WEIGHTS,
        "settings": {
            name: value
            for name, value in vars(settings).items()
            if name not in ("package", "out", "model")
        },
        "units": "divergence and cross_entropy nats a token; agreed and overlap shares; of the "
        "held-out chapters, by step of a chain",
        "published": _evaluate(_rounded(best), embedding, validation, settings),
        "curve": curve,
        "wall_seconds": round(time.monotonic() - started, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
    }
    (settings.out / DRAFT_RECORD).write_text(record_text(record), encoding="utf-8")
    print(json.dumps(record["published"]))


def _check_split(corpus: Corpus, model: Path) -> None:
    """Compare the corpus with the one used for the model's training. With another corpus the model
    may have seen the held-out chapters. Raises CorpusError."""
    known = json.loads((model / "training.json").read_text(encoding="utf-8"))["corpus"]["sha256"]
    if corpus.sha256 != known:
        raise CorpusError(
            f"the corpus's digest is {corpus.sha256}, and {model} was trained on {known}: "
            "use r-cran-janeaustenr 1.0.0"
        )


def _texts(trunk: Trunk, sequences: list[list[int]], device: str) -> Texts:
    return Texts(torch.tensor(sequences, device=device), trunk.hidden(sequences).to(device))


def _train(
    head: DraftHead,
    embedding: Tensor,
    texts: Texts,
    validation: Texts,
    settings: argparse.Namespace,
    started: float,
) -> tuple[list[dict[str, Any]], DraftHead]:
    """Train the draft layer, perhaps ending early. Returns the loss curve, and the layer with the
    best result on `validation`."""
    groups = parameter_groups(head, settings.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    order = random.Random(settings.seed)
    rows = max(1, settings.batch_tokens // settings.length)
    curve: list[dict[str, Any]] = []
    best, lowest = head, math.inf
    losses: list[Tensor] = []
    queue: list[int] = []
    for index in range(settings.steps + 1):
        if index % settings.evaluate_every == 0 or index == settings.steps:
            found = _evaluate(head, embedding, validation, settings)
            trained = round(torch.stack(losses).mean().item(), 4) if losses else None
            curve.append({"step": index, "train": trained, **found})
            print(f"{time.monotonic() - started:6.0f} s {curve[-1]}", flush=True)
            losses = []
            if found["loss"] < lowest:
                best, lowest = copy.deepcopy(head), found["loss"]
            if time.monotonic() - started > settings.seconds:
                break
        if index == settings.steps:
            break
        while len(queue) < rows:
            queue += order.sample(range(len(texts.tokens)), len(texts.tokens))
        chosen, queue = torch.tensor(queue[:rows], device=embedding.device), queue[rows:]
        for group in optimiser.param_groups:
            group["lr"] = rate(index, settings.steps, settings.rate, settings.warm_up)
        optimiser.zero_grad(set_to_none=True)
        batch = _batch(texts, chosen, embedding)
        with _mixed_precision(embedding.device):
            total = loss(scores(head, batch), settings.cross_entropy)
        total.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        losses.append(total.detach())
    return curve, best


def _batch(texts: Texts, chosen: Tensor, embedding: Tensor) -> Batch:
    tokens = texts.tokens[chosen]
    embedded = functional.embedding(tokens, embedding)
    return Batch(tokens, embedded, texts.hidden[chosen].float(), embedding)


@torch.no_grad()
def _evaluate(
    head: DraftHead, embedding: Tensor, texts: Texts, settings: argparse.Namespace
) -> dict[str, Any]:
    """Return the mean scores of each step over the texts, in the precision of training."""
    parts: list[list[StepScores]] = []
    for row in range(len(texts.tokens)):
        chosen = torch.tensor([row], device=embedding.device)
        with _mixed_precision(embedding.device):
            parts.append(scores(head, _batch(texts, chosen, embedding)))
    steps = range(len(STEP_WEIGHTS))
    found: dict[str, Any] = {
        name: [
            round(torch.stack([getattr(part[step], name) for part in parts]).mean().item(), 4)
            for step in steps
        ]
        for name in ("divergence", "cross_entropy", "agreed", "overlap")
    }
    total = torch.stack([loss(part, settings.cross_entropy) for part in parts]).mean()
    return {"loss": round(total.item(), 4), **found}


def _rounded(head: DraftHead) -> DraftHead:
    """Return the draft layer rounded to its shipped precision."""
    shipped = copy.deepcopy(head)
    shipped.to(torch.bfloat16).float()
    return shipped


def _mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context with bfloat16 matrix products on a GPU, and float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="r-cran-janeaustenr_*.deb")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", type=Path, default=_MODEL, help="folder of the frozen model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--trunk-device", help="of the frozen model; as --device if not given")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--chapters", type=int, help="of each part at most: for a trial")
    parser.add_argument("--cuts", type=int, default=4, help="of the text into sequences")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--cross-entropy", type=float, default=0.1, help="its weight")
    parser.add_argument("--warm-up", type=int, default=50, help="steps")
    parser.add_argument("--evaluate-every", type=int, default=50, help="steps")
    parser.add_argument("--seconds", type=float, default=180, help="stop at the next evaluation")
    return parser.parse_args()


if __name__ == "__main__":
    main()
