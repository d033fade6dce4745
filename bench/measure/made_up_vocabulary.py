"""A vocabulary of a model's size, for grammars over weights that were drawn: tokens that look like
those of a tokenizer, and are the same each time. Pure."""

import numpy as np

from tasuki.model.grammar.vocabulary import Vocabulary

_SEED = 16
_LETTERS = b'etaoinshrdlucmfwypvbgkjqxz 0123456789",:{}[]\n'


def made_up_vocabulary(size: int) -> Vocabulary:
    """Every byte, and words of a few letters, as many as the model has tokens; the last one ends
    answers."""
    rng = np.random.default_rng(_SEED)
    words = {bytes([byte]): None for byte in range(256)}
    letters = np.frombuffer(_LETTERS, dtype=np.uint8)
    while len(words) < size - 1:
        for length in rng.integers(2, 9, size // 4).tolist():
            words[rng.choice(letters, length).tobytes()] = None
    return Vocabulary((*list(words)[: size - 1], b""), (size - 1,))
