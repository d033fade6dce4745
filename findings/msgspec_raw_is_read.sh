#!/usr/bin/env bash
# msgspec 0.22.0: a value of type msgspec.Raw is checked, and by other rules than Python's json has.
#
# Guess before the run: Raw keeps the bytes of a value for later, so the decoder skips them and finds
# no error in them. A proxy that hands a tool call's arguments on as Raw would hand on broken JSON.
#
# Seen: Raw refuses broken JSON inside the value: wrong escapes, control characters, missing commas.
# It also differs from json in both directions. It refuses half of a surrogate pair and NaN, which
# json takes. It takes an integer of 5,000 digits, which json refuses.
#
# What follows: Raw is a fast check of a text that is handed on. A client that parses with json may
# still fail on a long number, and a text that json took may be refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "msgspec==0.22.0"
"$folder/venv/bin/python" - <<'PYTHON'
import json

import msgspec


def takes(decode, text):
    try:
        decode(text)
    except ValueError:
        return False
    return True


def raw(text):
    return msgspec.json.decode(text.encode(), type=msgspec.Raw)


texts = {
    "a wrong escape": '["\\x"]',
    "a control character": '["a\nb"]',
    "a missing comma": "[1 2]",
    "a number with a leading zero": "[01]",
    "half of a surrogate pair": '["\\ud800"]',
    "NaN": "[NaN]",
    "an integer of 5,000 digits": f"[{'9' * 5000}]",
}
seen = {name: (takes(raw, text), takes(json.loads, text)) for name, text in texts.items()}
print("msgspec", msgspec.__version__)
for name, (by_raw, by_json) in seen.items():
    print(f"{name:<30} Raw {'takes' if by_raw else 'refuses':<8} json {'takes' if by_json else 'refuses'}")
assert seen == {
    "a wrong escape": (False, False),
    "a control character": (False, False),
    "a missing comma": (False, False),
    "a number with a leading zero": (False, False),
    "half of a surrogate pair": (False, True),
    "NaN": (False, True),
    "an integer of 5,000 digits": (True, False),
}, seen
PYTHON
