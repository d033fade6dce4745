"""Conversion of text to token ids and back, for byte-level tokenizers in Hugging Face layout.

Tokenizer owns the vocabulary of one checkpoint. Immutable after load, so any thread may use it.
Invariant: `encode` never returns an added token (such as <|im_end|>), whatever the text holds. Only
the chat template places added tokens, through `added_tokens`.
"""

import codecs
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tasuki.engine.messages import Tokens
from tasuki.model.grammar.vocabulary import bytes_by_id

# Below this length, encoding takes a millisecond or two.
_LONG_TEXT = 1 << 12
_SLICE = 1 << 14
"""Number of token ids copied before other threads may run; they take under a millisecond."""


class TokenizerError(ValueError):
    """Error for an unusable tokenizer.json. The message names the file and the fix."""


class TooManyTokens(ValueError):
    """Error for a text with more tokens than allowed."""

    def __init__(self, tokens: int) -> None:
        """tokens: number of tokens counted so far."""
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class Tokenizer:
    def __init__(self, specification: Mapping[str, Any], source: str) -> None:
        """specification: content of a tokenizer.json. source: name of the file in errors. Raises
        TokenizerError."""
        try:
            decoder = specification["decoder"] or {}
            model = dict(specification["model"])
            vocabulary: dict[str, int] = dict(model["vocab"])
            added = specification.get("added_tokens") or []
            self.added_tokens = {str(item["content"]): int(item["id"]) for item in added}
            self.special_tokens = frozenset(
                str(item["content"]) for item in added if item.get("special")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TokenizerError(
                f"{source} lacks or garbles the field {error}: copy the checkpoint's file again"
            ) from error
        if decoder.get("type") != "ByteLevel":
            raise TokenizerError(
                f"{source}: decoder is {decoder.get('type')}, only ByteLevel is supported: send "
                "token ids"
            )
        for content in self.added_tokens:
            vocabulary.pop(content, None)
        by_id = _bytes_by_id(vocabulary, source)
        for content, token in self.added_tokens.items():
            by_id[token] = b"" if content in self.special_tokens else content.encode()
        self.longest_token = max(map(len, by_id.values()), default=1)
        self.whole_texts: Mapping[int, str]
        """Text of each token consisting of whole UTF-8 characters, by token id. Nearly all tokens
        do."""
        self.whole_texts, self._torn = _parted(by_id)
        model["vocab"] = vocabulary
        plain = {**specification, "model": model, "added_tokens": [], "post_processor": None}
        # One thread for one text: otherwise even a batch of one would start a pool of threads.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(
                f"{source} is refused by the tokenizers library: {error}"
            ) from error
        self._plain.no_truncation()
        self._plain.no_padding()

    @staticmethod
    def load(model_dir: Path) -> "Tokenizer | None":
        """Load the tokenizer of a checkpoint folder. Return None if the folder has no
        tokenizer.json. Raises TokenizerError."""
        path = model_dir / "tokenizer.json"
        if not path.exists():
            return None
        try:
            specification = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TokenizerError(f"{path} cannot be read ({error.strerror}): copy it") from error
        except ValueError as error:
            raise TokenizerError(f"{path} is not JSON ({error}): copy the file again") from error
        if not isinstance(specification, dict):
            raise TokenizerError(f"{path} is not a JSON object: copy the file again")
        return Tokenizer(specification, str(path))

    @property
    def special_names(self) -> dict[int, str]:
        """Return the names of special tokens by token id."""
        added = self.added_tokens
        return {added[name]: name for name in self.special_tokens if name in added}

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return the token ids of plain text. Names of special tokens in the text are encoded as
        plain text. most: allowed number of tokens; None: no limit. Raises TooManyTokens above
        it."""
        if not text:
            return []
        if len(text) < _LONG_TEXT:
            encoded = self._plain.encode(text, add_special_tokens=False)
        else:
            # A batch releases the interpreter's lock meanwhile; one text alone does not.
            (encoded,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        if most is not None and len(encoded) > most:
            raise TooManyTokens(len(encoded))
        return list(encoded.ids)

    def encode_all(
        self, texts: Sequence[str], most: int | None = None, before: int = 0
    ) -> list[Tokens]:
        """Return the token ids of each text, int32 [T], by one call without the interpreter's lock.

        most: allowed number of tokens of all texts, including `before` tokens of earlier texts.
        Raises TooManyTokens.
        """
        encoded = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        count = before + sum(map(len, encoded))
        if most is not None and count > most:
            raise TooManyTokens(count)
        return [_array(item.ids) for item in encoded]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids, without special tokens. Broken UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes(token) for token in token_ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token adds to a text; empty for a special token or an unused id."""
        text = self.whole_texts.get(token)
        return self._torn.get(token, b"") if text is None else text.encode()


class IncrementalDetokenizer:
    """Converter of one answer's tokens to text, as they come. It holds back the bytes of an
    unfinished character."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """tokenizer: None if the checkpoint has none; all text is then empty."""
        self._tokenizer = tokenizer
        self._whole_texts = {} if tokenizer is None else tokenizer.whole_texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._torn = False

    def push(self, token: int) -> str:
        if not self._torn:
            # The decoder costs several times as much.
            text = self._whole_texts.get(token)
            if text is not None:
                return text
        if self._tokenizer is None:
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        self._torn = self._decoder.getstate()[0] != b""
        return text

    def leave_out_end(self) -> None:
        """Drop the last token's text, because the token ended the answer. This class holds back no
        such text, and does nothing."""

    def finish(self) -> str:
        """Return the text left after the last token: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class NamingDetokenizer(IncrementalDetokenizer):
    """A detokenizer with special tokens in its text, by name. Each special token is held back until
    the next token, because it may be the answer's end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._names = tokenizer.special_names
        self._held = ""

    def push(self, token: int) -> str:
        held, self._held = self._held, ""
        name = self._names.get(token)
        if name is None:
            return held + super().push(token)
        self._held = name
        # No character continues after it.
        self._torn = False
        return held + super().finish()

    def leave_out_end(self) -> None:
        self._held = ""

    def finish(self) -> str:
        return self._held + super().finish()


def _array(ids: list[int]) -> Tokens:
    """Return token ids as an int32 array [T]. Other threads can run between slices."""
    made = np.empty(len(ids), dtype=np.int32)
    for at in range(0, len(ids), _SLICE):
        made[at : at + _SLICE] = ids[at : at + _SLICE]
    return made


def _parted(by_id: Mapping[int, bytes]) -> tuple[dict[int, str], dict[int, bytes]]:
    """Return the text of each token made of whole characters, and the bytes of each other token, by
    token id."""
    texts: dict[int, str] = {}
    torn: dict[int, bytes] = {}
    for token, added in by_id.items():
        try:
            texts[token] = added.decode()
        except UnicodeDecodeError:
            torn[token] = added
    return texts, torn


def _bytes_by_id(vocabulary: Mapping[str, int], source: str) -> dict[int, bytes]:
    try:
        return bytes_by_id(vocabulary)
    except KeyError as error:
        raise TokenizerError(
            f"{source}: vocabulary has {error}, which is not byte-level: send token ids"
        ) from error
