#!/usr/bin/env bash
# llguidance 1.9.1: copies of a matcher share the states of its lexer, and the bound on them.
#
# Guess before the run: LLMatcher.deep_copy() is what a server makes for each request of one compiled
# schema, so a bound on states (LLParserLimits.max_lexer_states) is a request's own.
#
# Seen: one copy writes 2,221 letters of a string and meets the bound. A copy that was made before,
# and has written nothing, then takes no letter either. Nor does a copy that is made afterwards. Each
# reports "too many states".
#
# What follows for a server that keeps compiled grammars: one long answer may end the answers of all
# other callers of that schema. Compile the grammar anew once a copy has met the bound.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "llguidance==1.9.1"
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

import llguidance

LETTERS = 2_500


class Tokenizer:
    """As TokenizerWrapper takes one: single bytes and an end token."""

    tokens = [*(bytes([byte]) for byte in range(256)), b"<|end|>"]
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = [256]

    def __call__(self, text):
        return []


def written(matcher, text):
    """Return how many letters it takes, each behind a look at its mask."""
    for place, byte in enumerate(text.encode()):
        matcher.compute_bitmask()
        if matcher.is_error() or not matcher.consume_token(byte):
            return place
    return len(text)


schema = json.dumps({"type": "string", "maxLength": 4000})
first = llguidance.LLMatcher(
    llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer())),
    llguidance.LLMatcher.grammar_from_json_schema(schema),
    log_level=0,
    limits=llguidance.LLParserLimits(max_lexer_states=20_000),
)
before, long = first.deep_copy(), first.deep_copy()
took = written(long, '"' + "a" * LETTERS)
after = first.deep_copy()
seen = {name: written(copy, '"' + "b" * 20) for name, copy in (("before", before), ("after", after))}
print("llguidance", version("llguidance"))
print(f"a copy took {took} of {LETTERS + 1} letters: {long.get_error().splitlines()[0][:80]}")
for name, count in seen.items():
    print(f"a copy made {name} it took {count} of 21 letters")
assert took < LETTERS and "too many states" in long.get_error(), (took, long.get_error())
assert seen == {"before": 0, "after": 0}, seen
PYTHON
