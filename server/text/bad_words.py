"""Texts that an answer may not hold, as sequences of token ids. Pure."""

from collections.abc import Sequence

from tasuki.server.errors import InvalidField

from .text_codec import TextCodec

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256


def read_bad_words(
    field: str, words: Sequence[object], codec: TextCodec
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each text at the beginning of a text, and, where that is another token for the
    same number of tokens, behind a space, as vLLM has it. Raises InvalidField, and InvalidRequest
    where the checkpoint has no tokenizer."""
    if not words:
        return ()
    if len(words) > MAX_BAD_WORDS:
        raise InvalidField(field, f"may hold at most {MAX_BAD_WORDS} strings")
    tokenizer = codec.require_tokenizer()
    sequences = []
    for word in words:
        text = word.lstrip() if isinstance(word, str) else ""
        if not 0 < len(text) <= MAX_BAD_WORD_CHARACTERS:
            raise InvalidField(
                field, f"must hold strings of 1 to {MAX_BAD_WORD_CHARACTERS} characters"
            )
        first, behind = tokenizer.encode(text), tokenizer.encode(f" {text}")
        sequences.append(tuple(first))
        if behind[0] != first[0] and len(behind) == len(first):
            sequences.append(tuple(behind))
    return tuple(sequences)
