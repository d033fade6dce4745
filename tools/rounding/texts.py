"""Texts outside the training data of the models in the repository."""

import random
from pathlib import Path

from tokenizers import Tokenizer

from tools.tool_caller.batches import bare, word_pieces
from tools.tool_caller.dialogue import DialogueMaker

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "model" / "embedded"
TOOL_CALLER = ROOT / "tests" / "tool_caller"
_WORDS_OF_FILLER, _LONGEST = 60, 8


def prose(tokens: int) -> list[int]:
    """Return tokens of the embedded model: the held-out excerpt of novels, the licence, then the
    pages of docs/."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    pages = sorted((ROOT / "docs").glob("*.md"))
    text = "".join(p.read_text() for p in (EMBEDDED / "held_out.txt", ROOT / "LICENSE", *pages))
    return list(tokenizer.encode(text).ids[:tokens])


def dialogues(tokens: int) -> list[int]:
    """Return tokens of the tool caller: requests for random calls, and their answers."""
    tokenizer = Tokenizer.from_file(str(TOOL_CALLER / "tokenizer.json"))
    maker = DialogueMaker(word_pieces(tokenizer), random.Random("rounding"))
    found: list[int] = []
    while len(found) < tokens:
        prompt, answer = maker.prompt_and_answer(bare, _WORDS_OF_FILLER, _LONGEST)
        found += tokenizer.encode(f"{prompt}{answer}<|im_end|>\n").ids
    return found[:tokens]
