"""Trains the tool caller (a small model making requested tool calls) and writes its checkpoint
folder: `python -m tools.tool_caller.train --out FOLDER`.

Owns the schedule and the record (training.json). One process on a CPU; the same seed, torch and
number of threads make the same weights.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb

from tools.training import checkpoint
from tools.training.gated_delta import install
from tools.training.schedule import rate

from .batches import BatchMaker, Pair, texts
from .shape import MAX_ANSWER, MAX_TOKENS, model_config, train_tokenizer
from .start import prefer_near, sharpen, start


def answer_states(model: nn.Module, tokens: Tensor, answers: Tensor) -> Tensor:
    """Return the states [N, D] after the last layer for the chosen tokens, row by row. tokens: ids
    [B, T]. answers: mask [B, T - 1] choosing among the tokens after the first. model: a
    Qwen3_5TextModel with attention in its last layer only.

    Only the last layer's cost grows with the square of the prompt; at tens of answers' tokens it is
    almost nothing. The layers below stay unchanged, without gradients.
    """
    last = model.layers[-1]
    with torch.no_grad():
        positions = torch.arange(tokens.shape[1]).view(1, 1, -1).expand(3, 1, -1)
        hidden = model.embed_tokens(tokens)
        turned = model.rotary_emb(hidden, positions)
        for layer in model.layers[:-1]:
            hidden = layer(hidden, position_embeddings=turned, use_cache=False)
    rows = [
        _layer_at(last, states, turned, chosen.nonzero().squeeze(-1))
        for states, chosen in zip(hidden, answers, strict=True)
    ]
    out: Tensor = model.norm(torch.cat(rows))
    return out


def _layer_at(
    layer: nn.Module, states: Tensor, turned: tuple[Tensor, Tensor], places: Tensor
) -> Tensor:
    """Return the attention layer's output [N, D] at `places` [N] of a sequence's states [T, D].
    turned: rotary cosines and sines."""
    attention = layer.self_attn
    size = attention.head_dim
    normed = layer.input_layernorm(states)
    query, gate = attention.q_proj(normed[places]).view(len(places), -1, 2 * size).chunk(2, -1)
    query = attention.q_norm(query).transpose(0, 1)
    key = attention.k_norm(attention.k_proj(normed).view(len(states), -1, size)).transpose(0, 1)
    value = attention.v_proj(normed).view(len(states), -1, size).transpose(0, 1)
    cos, sin = (part[0] for part in turned)
    query, _ = apply_rotary_pos_emb(query, query, cos[places], sin[places], unsqueeze_dim=0)
    key, _ = apply_rotary_pos_emb(key, key, cos, sin, unsqueeze_dim=0)
    seen = torch.arange(len(states)) <= places.unsqueeze(-1)
    found = functional.scaled_dot_product_attention(
        query, key.expand(len(query), -1, -1), value.expand(len(query), -1, -1), attn_mask=seen
    )
    mixed = found.transpose(0, 1).flatten(1) * gate.flatten(1).sigmoid()
    after = states[places] + attention.o_proj(mixed)
    out: Tensor = after + layer.mlp(layer.post_attention_layernorm(after))
    return out


_WARM_UP_STEPS = 20
_EVALUATE_EVERY = 50
_LAST_LAYER_ONLY = (3, 4)
"""Numbers of the stages training only the last layer."""
_SHARPER = {3: 1.5, 4: 1.7}
"""Factor on attention scores at the stage's start, by stage: among more tokens, the unwanted ones
together take more attention."""
_NEARER = {4: 0.5}
"""Preference for near places set at the stage's start, by stage, as a part of a weight."""
_RECORDED = ("stage", "seed", "steps", "rate", "batch_tokens")


def main() -> None:
    settings = _settings()
    settings.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    install()
    tokenizer = train_tokenizer(texts())
    checkpoint.save_tokenizer(tokenizer, settings.out, MAX_TOKENS)
    end_of_text = checkpoint.special_id(tokenizer, checkpoint.END_OF_TEXT)
    turn_end = checkpoint.special_id(tokenizer, checkpoint.TURN_END)
    config = model_config(tokenizer.get_vocab_size(), end_of_text)
    config.save_pretrained(settings.out)
    # Take the likeliest token.
    generation = checkpoint.generation_config(
        end_of_text, turn_end, max_new_tokens=MAX_ANSWER, top_k=1
    )
    generation.save_pretrained(settings.out)
    model = Qwen3_5ForCausalLM(config)
    start(model)
    if settings.go_on is not None:
        model.load_state_dict(load_file(settings.go_on / "model.safetensors"), strict=False)
    if settings.stage in _SHARPER:
        sharpen(model, _SHARPER[settings.stage])
    if settings.stage in _NEARER:
        prefer_near(model, _NEARER[settings.stage])
    began = time.process_time()
    batches = BatchMaker(
        tokenizer, settings.seed, settings.steps, settings.batch_tokens, settings.stage
    )
    curve = _train(model, batches, settings, end_of_text)
    record = {
        "settings": {name: str(getattr(settings, name)) for name in _RECORDED},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": "mean cross-entropy of answers' tokens since the point before, nats; shares of "
        "held-out answers whose every token is the likeliest",
        "curve": curve,
        "cpu_seconds": round(time.process_time() - began),
        "torch": torch.__version__,
    }
    text = json.dumps(record, indent=1) + "\n"
    (settings.out / "training.json").write_text(text, encoding="utf-8")
    checkpoint.write_sums(settings.out)


def _train(
    model: nn.Module, batches: BatchMaker, settings: argparse.Namespace, filler: int
) -> list[dict[str, float | int]]:
    """Train the model and return the loss curve. Writes the weights at each point of the curve.
    With no steps the start is its only point."""
    learnt = model.model.layers[-1] if settings.stage in _LAST_LAYER_ONLY else model
    optimiser = torch.optim.AdamW(learnt.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    curve: list[dict[str, float | int]] = []
    losses: list[float] = []
    held = {kind: batches.held_out(kind) for kind in batches.kinds}
    for step in range(settings.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, settings.steps, settings.rate, _WARM_UP_STEPS, 0.02)
        optimiser.zero_grad(set_to_none=True)
        tokens, answers = _padded(batches.batch(step), filler)
        if settings.stage in _LAST_LAYER_ONLY:
            logits = model.lm_head(answer_states(model.model, tokens, answers))
        else:
            logits = _answer_logits(model, tokens, answers)
        loss = functional.cross_entropy(logits.float(), tokens[:, 1:][answers])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % _EVALUATE_EVERY == 0 or step + 1 == settings.steps:
            mean = round(sum(losses) / len(losses), 4)
            curve.append({"step": step + 1, "loss": mean, **_exact_shares(model, held, filler)})
            print(curve[-1], flush=True)
            losses = []
            checkpoint.save_weights(checkpoint.published(model), settings.out)
    if not settings.steps:
        curve.append({"step": 0, **_exact_shares(model, held, filler)})
        print(curve[-1], flush=True)
        checkpoint.save_weights(checkpoint.published(model), settings.out)
    return curve


def _exact_shares(
    model: nn.Module, held: Mapping[str, Sequence[Pair]], filler: int
) -> dict[str, float]:
    return {kind: _exact(model, pairs, filler) for kind, pairs in held.items()}


def _answer_logits(model: nn.Module, tokens: Tensor, answers: Tensor) -> Tensor:
    """Return logits [N, V] for the chosen tokens. tokens: ids [B, T]. answers: mask [B, T - 1]
    choosing among the tokens after the first."""
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden[:, :-1][answers])
    return logits


def _padded(pairs: Sequence[Pair], filler: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] padded with `filler`, and a mask [B, T - 1]. The mask marks the
    answers' tokens among the tokens after the first."""
    longest = max(len(pair.tokens) for pair in pairs)
    tokens = torch.full((len(pairs), longest), filler)
    answers = torch.zeros((len(pairs), longest - 1), dtype=torch.bool)
    for row, pair in enumerate(pairs):
        tokens[row, : len(pair.tokens)] = torch.tensor(pair.tokens)
        for places in pair.answers:
            answers[row, places.start - 1 : places.stop - 1] = True
    return tokens, answers


@torch.no_grad()
def _exact(model: nn.Module, pairs: Sequence[Pair], filler: int) -> float:
    """Return the share of answers predicted exactly: every token is the likeliest."""
    right: list[bool] = []
    for pair in pairs:
        tokens, answers = _padded([pair], filler)
        best = model.lm_head(answer_states(model.model, tokens, answers)).argmax(-1)
        hits = best == tokens[:, 1:][answers]
        right += [bool(part.all()) for part in hits.split([*map(len, pair.answers)])]
    return round(sum(right) / len(right), 3)


def _settings() -> argparse.Namespace:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500, help="0 trains nothing")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3, 4), default=1)
    parser.add_argument("--go-on", type=Path, help="folder of the stage before")
    settings: argparse.Namespace = parser.parse_args()
    return settings


if __name__ == "__main__":
    main()
