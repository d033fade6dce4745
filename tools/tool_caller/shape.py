"""The tool caller's shape, a Qwen3.5 that is as small as learns to copy, and its byte-level BPE.

A text's tokens do not depend on what stands around it: words, digits, spaces and marks are encoded
apart, so that a name has the same tokens wherever it stands: what is copied is copied token by
token. What always stands together in a call or in JSON is one token, so that two tokens say where
in it a place is.
"""

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from tools.training.checkpoint import byte_bpe, text_config

VOCABULARY = 1024
MAX_TOKENS = 131072
WORD_SIZE = 96
"""Of a hidden state, the part that a token's embedding fills at first."""
PRINT_SIZE = 24
"""Of it, each part that says which token stood at one of the places."""
PLACES = 4
"""A place and the three before it: as many as the convolution sees."""
MAX_ANSWER = 512
"""Tokens of an answer where a client sets no bound of its own."""
TAGS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)
"""Tokens, but not special: as Qwen's checkpoints have them."""
JOINTS = (
    *("\n</parameter>\n</function>\n", "\n</parameter>\n<parameter=", ">\n<parameter="),
    *(">\n</function>\n", "\n<function=", ">\n", "\n\n"),
    *('", "', '": "', '"], "', '": [', '": ', '", ', '="', '=["', '"], ', '"].', '".', '"}', '{"'),
    *(" with ", "Call ", "Say ", "Write ", "I call "),
)
"""Longer ones before their beginnings."""
_SEEN = 1000
"""How often each joint stands in what merges are learnt from: before any word is merged."""


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
    """Learn merges from `texts`; tags and specials take the last ids."""
    joints = "|".join(re.escape(joint) for joint in JOINTS)
    piece = rf"{joints}|\p{{Lu}}?\p{{Ll}}+|\p{{L}}|\p{{N}}|[^\p{{L}}\p{{N}}]"
    seen = [*texts, *(joint for joint in JOINTS for _ in range(_SEEN))]
    return byte_bpe(seen, VOCABULARY, pre_tokenizers.Split(Regex(piece), "isolated"), TAGS)


def word_pieces(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are letters only."""
    return sorted(word for word in tokenizer.get_vocab() if re.fullmatch("[A-Za-z]+", word))
