"""A vocabulary made for recovering token ids from an answer's text.

Token i is a space and four letters spelling i. Pure except for writing its file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

_LENGTH = 4
_SPACE = "\u0120"
"""The character standing for a space in byte-level vocabularies."""


def word(token: int) -> str:
    """Return the spelling of a token id in four letters. REQUIRES: 0 <= token < 26**4."""
    letters = ""
    for _ in range(_LENGTH):
        token, letter = divmod(token, len(ascii_lowercase))
        letters = ascii_lowercase[letter] + letters
    return letters


class Words:
    """The words of one vocabulary, by token id. Immutable; any thread."""

    def __init__(self, vocabulary: int) -> None:
        self._tokens = {word(token): token for token in range(vocabulary)}

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text. Raises KeyError for a word outside the vocabulary."""
        return [self._tokens[item] for item in text.split()]


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write folder/tokenizer.json in Hugging Face layout, byte-level like a published tokenizer."""
    tokens = {_SPACE + word(token): token for token in range(vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(tokens)))


def byte_level_tokenizer(
    tokens: Mapping[str, int], added: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the content of a tokenizer.json. tokens: ids of the vocabulary. added: descriptions of
    special tokens."""
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": tokens,
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }
