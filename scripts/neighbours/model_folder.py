"""Writes a model folder for chats without forwards: a cost-free shape, a tokenizer and a published
template."""

import json
from pathlib import Path

from tasuki.bench.load.free.model import free_shape
from tasuki.server.text.tokenizer import Tokenizer

_TESTS = Path(__file__).parents[2] / "tests"
_TOKENIZER = _TESTS / "tool_caller" / "tokenizer.json"
_TEMPLATE = _TESTS / "harness" / "qwen_templates" / "qwen3_5_nothink.jinja"
_END = "<|im_end|>"
_TAGS = ("<tool_call>", "</tool_call>")
VOCABULARY = 1024


def write_chat_folder(folder: Path, answer: str, max_position: int = 1 << 20) -> Path:
    """Write the model to folder/model and the answer's tokens to folder/answer.json, for the
    bench's --answers. max_position: context length in tokens. Returns the model's folder."""
    tokenizer_file = json.loads(_TOKENIZER.read_text(encoding="utf-8"))
    end = next(each["id"] for each in tokenizer_file["added_tokens"] if each["content"] == _END)
    model = folder / "model"
    model.mkdir()
    shape = {**free_shape(4), "vocab_size": VOCABULARY, "eos_token_id": end}
    shape["max_position_embeddings"] = max_position
    (model / "config.json").write_text(json.dumps(shape))
    (model / "tokenizer.json").write_text(json.dumps(tokenizer_file), encoding="utf-8")
    template = _TEMPLATE.read_text(encoding="utf-8")
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = Tokenizer.load(model)
    assert tokenizer is not None
    (folder / "answer.json").write_text(json.dumps(_tokens_of(tokenizer, answer)))
    return folder


def _tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the text's token ids, like a model writes it: each tag is one token."""
    for tag in _TAGS:
        before, found, behind = text.partition(tag)
        if found:
            own = tokenizer.added_tokens[tag]
            return [*_tokens_of(tokenizer, before), own, *_tokens_of(tokenizer, behind)]
    return [*map(int, tokenizer.encode(text))]
