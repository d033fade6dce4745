#!/usr/bin/env bash
# llguidance 1.9.1: whether a regular expression compiles depends on the size of the vocabulary.
#
# Guess before the run: a compiler's verdict on an expression is a matter of the expression. A server
# may check expressions with a small vocabulary of single bytes, which is fast, and compile them later
# with the model's own tokens.
#
# Seen: one expression of 26 branches compiles with 20,000 tokens and is refused with 60,000, by
# "lexer precomputation failed". llguidance walks every token once when it compiles, and that walk has
# a budget (initial_lexer_fuel) that does not grow with the vocabulary.
#
# What follows for a server: check a grammar with the vocabulary of the model that will answer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "llguidance==1.9.1"
"$folder/venv/bin/python" - <<'PYTHON'
import random
from importlib.metadata import version

import llguidance


class Tokenizer:
    """As TokenizerWrapper takes one: single bytes, random words, and an end token."""

    def __init__(self, words):
        rng, letters = random.Random(0), b"abcdefghijklmnopqrstuvwxyz "
        found = set()
        while len(found) < words:
            found.add(bytes(rng.choices(letters, k=rng.randint(3, 9))))
        self.tokens = [*(bytes([byte]) for byte in range(256)), *sorted(found), b"<|end|>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text):
        return []


def verdict(words, expression):
    tokenizer = Tokenizer(words)
    tree = llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokenizer))
    matcher = llguidance.LLMatcher(
        tree, llguidance.LLMatcher.grammar_from_regex(expression), log_level=0
    )
    return matcher.get_error() if matcher.is_error() else "compiles"


expression = "|".join(f".*{chr(97 + place)}.{{{5 + place}}}" for place in range(26))
seen = {words: verdict(words, expression) for words in (0, 20_000, 60_000)}
print("llguidance", version("llguidance"))
for words, outcome in seen.items():
    print(f"{words + 257:>7} tokens: {outcome.splitlines()[0][:90]}")
assert seen[0] == seen[20_000] == "compiles", seen
assert "lexer precomputation failed" in seen[60_000], seen
PYTHON
