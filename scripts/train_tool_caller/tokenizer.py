"""The tool caller's byte-level BPE: a text's tokens do not depend on what stands around it.

Words, digits, spaces and marks are encoded apart, so that a name has the same tokens wherever it
stands: what is copied is copied token by token. What always stands together in a call or in JSON is
one token, so that two tokens say where in it a place is.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
END_OF_TEXT, TURN_START, TURN_END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
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


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn merges from `texts`; tags and specials take the last ids."""
    tokenizer = Tokenizer(models.BPE())
    joints = "|".join(re.escape(joint) for joint in JOINTS)
    piece = rf"{joints}|\p{{Lu}}?\p{{Ll}}+|\p{{L}}|\p{{N}}|[^\p{{L}}\p{{N}}]"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(piece), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [*texts, *(joint for joint in JOINTS for _ in range(_SEEN))], trainer
    )
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return tokenizer


def word_pieces(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are letters only."""
    return sorted(word for word in tokenizer.get_vocab() if re.fullmatch("[A-Za-z]+", word))


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_tokens: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; a chat template is put beside them by who
    serves it."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": max_tokens,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
