#!/usr/bin/env bash
# aiperf 0.13.0: a tokenizer's folder works online only; with HF_HUB_OFFLINE=1 it is refused.
#
# Guess before the run: a folder on disk asks nothing of a hub, so HF_HUB_OFFLINE=1 changes nothing.
# A machine without a way out sets the variable and gives the folder.
#
# Seen: the variable chooses another loader. It looks the path up as a repository's name in the hub's
# cache and fails with HFValidationError. Without the variable the same folder is read, and no
# network is needed. The check before the run says "[OK]" in both cases.
#
# What follows: on a machine without a way out, give the folder and leave the variable unset. Or keep
# the variable and lay the folder out as a hub's cache, under a name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "aiperf==0.13.0"
cat > "$folder/load.py" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from aiperf.common.tokenizer import Tokenizer
from tokenizers import Tokenizer as Made
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
if not folder.exists():
    made = Made(models.WordLevel({"[UNK]": 0, "two": 1, "words": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
try:
    loaded = Tokenizer.from_pretrained(str(folder))
    print("aiperf", version("aiperf"), "reads it:", loaded.encode("two words"))
except Exception as error:
    print("aiperf", version("aiperf"), "refuses it:", type(error).__name__, str(error)[-160:])
    sys.exit(3)
PYTHON
run() { env -u HF_HUB_OFFLINE -u TRANSFORMERS_OFFLINE HF_HOME="$folder/hub" "$@" \
  "$folder/venv/bin/python" "$folder/load.py" "$folder/tokenizer"; }
run env
status=0
run env HF_HUB_OFFLINE=1 || status=$?
test "$status" -eq 3
echo "the same folder: read without HF_HUB_OFFLINE, refused with it"
