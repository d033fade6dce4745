"""A small Qwen3.5 checkpoint of random weights, for tests needing a folder and not reading its
text. Its answers are nonsense, but equal through every path."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasuki.cli import demo as demo_script
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.source import RandomSource
from tests.harness.qwen35 import config_of

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_VOCABULARY = 1024
_SEED = 20260101

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CONFIG = {
    "model_type": "qwen3_5_text",
    "vocab_size": _VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "layer_types": ([*["linear_attention"] * 3, "full_attention"]) * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "intermediate_size": 320,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "eos_token_id": _SPECIALS.index("<|im_end|>"),
}


def write_random_model(folder: Path, raw: dict[str, Any] = CONFIG) -> None:
    """Write a Qwen3.5 checkpoint of random parameters in Hugging Face layout, with a tokenizer of
    1024 tokens or fewer. It has 1.8M parameters unless `raw` asks for others."""
    write_random_weights(folder, raw)
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    _write_tokenizer(folder / "tokenizer.json")


def write_random_weights(folder: Path, raw: dict[str, Any]) -> DeltaNetConfig:
    """Write config.json and float32 weights of any shape, without a tokenizer."""

    class Recorder(RandomSource):
        def __init__(self) -> None:
            super().__init__(_SEED)
            self.tensors: dict[str, torch.Tensor] = {}

        def read(
            self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
        ) -> torch.Tensor:
            tensor = super().read(name, shape, dtype, part)
            prefix = "" if name.startswith("lm_head.") else "model."
            self.tensors[prefix + name] = tensor
            return tensor

    recorder = Recorder()
    config = config_of(raw)
    assemble(config, recorder, torch.float32)
    folder.mkdir(exist_ok=True)
    save_file(recorder.tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return config


def _write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["content"] for turn in demo_script.scripted_turns() for message in turn)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
