"""The text files of a drawn checkpoint: vocabulary, chat template, processors of pictures.

Token i is the word spelling i (`bench.load.words`), except for 256 single bytes and the special
tokens. So a text of n words has n tokens, and any other text can be encoded too. transformers and
vLLM read the same files.
"""

import json
import random
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from tasuki.bench.load.words import byte_level_tokenizer, word

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Special tokens, the last ones of a vocabulary."""
TEMPLATE_TOKENS = 19
"""Tokens of a prompt with one text, besides the text's own."""
_BYTES = 256
_SPACE = "\u0120"
"""The character standing for a space in byte-level vocabularies."""
_TEMPLATE = """{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url') or 'image' in part -%}\
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_PROCESSOR: dict[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "merge_size": 2,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "processor_class": "Qwen3VLProcessor",
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
}
"""The published processor of Qwen3.5's pictures. The sizes are numbers of pixels."""
_VIDEO = {"video_processor_type": "Qwen3VLVideoProcessor"}


def special_id(name: str, vocabulary: int) -> int:
    """Return the id of a special token. vocabulary: number of all tokens."""
    return vocabulary - len(SPECIAL) + SPECIAL.index(name)


def text_of(seed: str, tokens: int, vocabulary: int) -> str:
    """Return a random text with this number of tokens, always the same for a seed."""
    drawn = random.Random(seed).choices(range(_BYTES, vocabulary - len(SPECIAL)), k=tokens)
    return "".join(f" {word(token)}" for token in drawn)


def write_text_files(folder: Path, vocabulary: int) -> None:
    """Write the tokenizer, the chat template and the processors' files. vocabulary: number of all
    tokens."""
    _write(folder / "tokenizer.json", _tokenizer(vocabulary))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "model_max_length": 262144,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
    )
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    _write(folder / "preprocessor_config.json", _PROCESSOR)
    _write(folder / "video_preprocessor_config.json", _PROCESSOR | _VIDEO)


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    words = range(_BYTES, vocabulary - len(SPECIAL))
    known = {letter: token for token, letter in enumerate(sorted(ByteLevel.alphabet()))}
    known |= {_SPACE + word(token): token for token in words}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": special_id(name, vocabulary), "content": name, **plain, "special": True}
        for name in SPECIAL
    ]
    return byte_level_tokenizer(known, added)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
