"""Writes a trained model as a shipped checkpoint folder, and its SHA-256 sums.

Owns file names and dtypes: tensors in float32 in published Qwen3.5 checkpoints stay in float32.
`python -m tools.training.checkpoint FOLDER` rewrites SHA256SUMS. With a second folder, it first
copies the draft layer trained there into the weights.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

SUMS = "SHA256SUMS"
DRAFT_HEAD = "mtp.safetensors"
DRAFT_RECORD = "draft_head.json"
FLOAT32 = (".A_log", ".linear_attn.norm.weight")
"""Endings of the names of tensors stored in float32 by published checkpoints; all others are
bfloat16."""
END_OF_TEXT, TURN_START, TURN_END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WEIGHTS = "model.safetensors"


def text_config(mrope_section: Sequence[int], **shape: Any) -> Any:
    """Return transformers' config of a small Qwen3.5 with tied embeddings. mrope_section: value of
    this rotary setting."""
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": list(mrope_section),
        },
        **shape,
    )


def generation_config(end_of_text: int, turn_end: int, **sampling: Any) -> Any:
    """Return transformers' generation config: generation stops at the tokens ending a turn and a
    text."""
    from transformers import GenerationConfig

    return GenerationConfig(
        eos_token_id=[turn_end, end_of_text],
        pad_token_id=end_of_text,
        do_sample=True,
        **sampling,
    )


def byte_bpe(
    texts: Iterable[str], vocabulary: int, split: Any = None, tags: Sequence[str] = ()
) -> Tokenizer:
    """Train a byte-level BPE tokenizer on `texts`. Tags and special tokens take the last ids, like
    in published models. vocabulary: number of tokens. split: pattern cutting texts before bytes;
    default: GPT-2's own."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = level if split is None else pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIALS) - len(tags),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tags:
        tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in tags])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return tokenizer


def special_id(tokenizer: Tokenizer, name: str) -> int:
    """Return the id of a special token. Raises KeyError if the tokenizer lacks it."""
    found = tokenizer.token_to_id(name)
    if found is None:
        raise KeyError(f"the tokenizer lacks {name}; train it with this script")
    return int(found)


def save_tokenizer(
    tokenizer: Tokenizer, directory: Path, max_tokens: int, chat_template: str = ""
) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if given, chat_template.jinja in Hugging
    Face layout."""
    tokenizer.save(str(directory / "tokenizer.json"))
    if chat_template:
        (directory / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None,
        **({"chat_template": chat_template} if chat_template else {}),
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": max_tokens,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def published(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's tensors in their shipped form, on the CPU, without the tied output
    head."""
    return {
        name: (
            tensor.detach()
            .to("cpu", torch.float32 if name.endswith(FLOAT32) else torch.bfloat16)
            .contiguous()
        )
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }


def save_weights(tensors: dict[str, Tensor], directory: Path) -> None:
    """Write model.safetensors."""
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})


def add_draft_head(directory: Path, trained: Path) -> None:
    """Put a trained draft layer into the folder's weights, replacing any earlier one. Its training
    record is stored in the same folder."""
    kept = {
        name: tensor
        for name, tensor in load_file(directory / _WEIGHTS).items()
        if not name.startswith("mtp.")
    }
    save_weights({**kept, **load_file(trained / DRAFT_HEAD)}, directory)
    shutil.copyfile(trained / DRAFT_RECORD, directory / DRAFT_RECORD)


def write_sums(directory: Path) -> None:
    """Write the SHA-256 sum of every file of the folder except the sums themselves, in sha256sum's
    format."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / SUMS).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        add_draft_head(Path(sys.argv[1]), Path(sys.argv[2]))
    write_sums(Path(sys.argv[1]))
