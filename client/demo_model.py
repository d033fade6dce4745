"""The model of a demonstration: what the package carries, else random weights made on the spot.

Owns the temporary folder of made weights. A model of random weights answers nonsense, but the same
nonsense through every path, which is what the demonstration compares.
"""

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import demo_script
from .launcher import PACKAGE

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_VOCABULARY = 1024
_SEED = 20260101

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CONFIG = {
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


@contextmanager
def model_folder(chosen: str) -> Iterator[Path]:
    """`chosen` if not empty, else the embedded model, else a folder that is removed at the end."""
    if chosen:
        yield Path(chosen)
        return
    embedded = embedded_model()
    if embedded is not None:
        yield embedded
        return
    with tempfile.TemporaryDirectory(prefix="tasuki-demo-") as name:
        write_random_model(Path(name))
        yield Path(name)


def embedded_model() -> Path | None:
    """The folder of the model that the package carries, where it carries one."""
    spec = importlib.util.find_spec(f"{PACKAGE}.model")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "embedded"
        if (folder / "config.json").exists():
            return folder
    return None


def write_random_model(folder: Path) -> None:
    """A Qwen3.5 checkpoint of 1.8M random parameters with a tokenizer, in Hugging Face layout."""
    # Only this path needs torch; a client otherwise starts in a moment.
    import torch
    from safetensors.torch import save_file

    from ..model.config import ModelConfig
    from ..model.random_weights import RandomSource
    from ..model.weights import assemble

    class Recorder(RandomSource):
        def __init__(self) -> None:
            super().__init__(_SEED)
            self.tensors: dict[str, torch.Tensor] = {}

        def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            tensor = super().read(name, shape, dtype)
            self.tensors[f"model.{name}"] = tensor
            return tensor

    recorder = Recorder()
    assemble(ModelConfig.from_dict(_CONFIG), recorder, torch.float32)
    save_file(recorder.tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    _write_tokenizer(folder / "tokenizer.json")


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["content"] for turn in demo_script.turns() for message in turn)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
