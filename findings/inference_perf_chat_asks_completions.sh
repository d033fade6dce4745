#!/usr/bin/env bash
# inference-perf 0.7.0: `api.type: chat` with `shared_prefix` prompts asks /v1/completions.
#
# Guess before the run: the API that the settings name is the one that is asked. The generator
# lists chats among the APIs that it supports, and nothing is warned of.
#
# Seen: every request is a completion. Only prompts with pictures, sound or film become chats. A
# chat template, thoughts and tools are then not measured, though the settings say chat.
#
# What follows: look at the server's paths before figures are compared. Chats come from `shareGPT`
# with a file, or from `mock`. It wants Python 3.12: PYTHON names one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "inference-perf==0.7.0"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from inference_perf.apis import LazyLoadInferenceAPIData
from inference_perf.config import APIConfig, APIType, DataConfig, DataGenType, SharedPrefix
from inference_perf.datagen.synthetic.shared_prefix_datagen import SharedPrefixDataGenerator
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


class Words:
    def __init__(self):
        words = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 50)}}
        made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")

    def get_tokenizer(self):
        return self.tokenizer

    def count_tokens(self, text, **_):
        return len(self.tokenizer.encode(text))


prefix = SharedPrefix(
    num_groups=2, num_prompts_per_group=1, system_prompt_len=8, question_len=8, output_len=4
)
made = SharedPrefixDataGenerator(
    APIConfig(type=APIType.Chat, streaming=True),
    DataConfig(type=DataGenType.SharedPrefix, shared_prefix=prefix),
    Words(),
)
lazy = next(made.get_data())
request = made.load_lazy_data(lazy)
print("inference-perf", version("inference-perf"))
print("chats are supported:", APIType.Chat in made.get_supported_apis())
print("api.type: chat asks", request.get_route())
assert APIType.Chat in made.get_supported_apis()
assert request.get_route() == "/v1/completions", request.get_route()
PYTHON
