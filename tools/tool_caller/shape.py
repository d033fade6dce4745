"""The tool caller's shape, the smallest Qwen3.5 able to learn to copy, and its byte-level BPE
tokenizer.

A text's tokens do not depend on its surroundings. Words, digits, spaces and marks are encoded
apart, so a name has the same tokens everywhere, and copying goes token by token. Fixed sequences in
a call or in JSON are one token, so two tokens identify a position in it.
"""

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from tools.training.checkpoint import byte_bpe, text_config

VOCABULARY = 1024
MAX_TOKENS = 131072
WORD_SIZE = 96
"""Number of hidden dimensions first filled by a token's embedding."""
PRINT_SIZE = 24
"""Number of hidden dimensions identifying the token at one of the PLACES places."""
PLACES = 4
"""Number of places identified in a hidden state: the present token's and the three before it, the
width of the convolution."""
MAX_ANSWER = 512
"""Largest number of tokens of an answer, if a client sets none."""
TAGS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)
"""Tags with one token each. They are not special tokens, like in Qwen's checkpoints."""
JOINTS = (
    *("\n</parameter>\n</function>\n", "\n</parameter>\n<parameter=", ">\n<parameter="),
    *(">\n</function>\n", "\n<function=", ">\n", "\n\n"),
    *('", "', '": "', '"], "', '": [', '": ', '", ', '="', '=["', '"], ', '"].', '".', '"}', '{"'),
    *(" with ", "Call ", "Say ", "Write ", "I call "),
)
"""Fixed texts between the parts of a call or of JSON, each one token. Longer ones come before their
own prefixes."""
_SEEN = 1000
"""Number of repeats of each text of JOINTS in the text for learning merges, so joints are merged
before any word."""


def model_config(vocabulary: int, end_of_text: int) -> Any:
    return text_config(
        mrope_section=(4, 4, 4),
        vocab_size=vocabulary,
        hidden_size=WORD_SIZE + PLACES * PRINT_SIZE,
        intermediate_size=192,
        num_hidden_layers=3,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=WORD_SIZE,
        linear_num_key_heads=1,
        linear_num_value_heads=PLACES,
        linear_key_head_dim=PRINT_SIZE,
        linear_value_head_dim=PRINT_SIZE,
        linear_conv_kernel_dim=PLACES,
        max_position_embeddings=MAX_TOKENS,
        eos_token_id=end_of_text,
    )


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train a BPE tokenizer on `texts`. Tags and special tokens take the last ids."""
    joints = "|".join(re.escape(joint) for joint in JOINTS)
    piece = rf"{joints}|\p{{Lu}}?\p{{Ll}}+|\p{{L}}|\p{{N}}|[^\p{{L}}\p{{N}}]"
    seen = [*texts, *(joint for joint in JOINTS for _ in range(_SEEN))]
    return byte_bpe(seen, VOCABULARY, pre_tokenizers.Split(Regex(piece), "isolated"), TAGS)


def word_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the texts of the tokens made of letters only."""
    return sorted(word for word in tokenizer.get_vocab() if re.fullmatch("[A-Za-z]+", word))
