"""Prepares the embedded model's text files for a vision tower: `python -m
tools.embedded.tower.prepare model/embedded`.

Writes the tower's shape into config.json, the rules of pixels, the placeholders into the tokenizer
and the pictures into the chat template. The vocabulary has no room. So placeholders take the ids of
four bytes absent from UTF-8 (0xFC to 0xFF). No weight changes.
"""

import json
import sys
from pathlib import Path
from typing import Any

PLACEHOLDERS = {
    "ü": "<|vision_start|>",
    "ý": "<|vision_end|>",
    "þ": "<|image_pad|>",
    "ÿ": "<|video_pad|>",
}
"""The placeholder tokens, by the byte whose id they take, as byte-level vocabularies name it."""
_FIELDS = {
    "vision_start_token_id": "ü",
    "vision_end_token_id": "ý",
    "image_token_id": "þ",
    "video_token_id": "ÿ",
}
PATCH, MERGE, FRAMES = 8, 2, 2
SIDE = 96
"""Side of a square picture after the resize, pixels."""
_PIXELS = SIDE * SIDE
_CLIP_FRAMES = 16
VISION = {
    "deepstack_visual_indexes": [],
    "depth": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 48,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "model_type": "qwen3_5",
    "num_heads": 3,
    "num_position_embeddings": 36,
    "out_hidden_size": 256,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": FRAMES,
}
"""The tower's shape: 195,000 parameters with the merger."""
_PROCESSOR: dict[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_size": MERGE,
    "patch_size": PATCH,
    "processor_class": "Qwen3VLProcessor",
    "temporal_patch_size": FRAMES,
}
_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"longest_edge": _PIXELS, "shortest_edge": _PIXELS},
}
_CLIPS = {
    "fps": 2,
    "max_frames": _CLIP_FRAMES,
    "min_frames": 2,
    "size": {"longest_edge": _CLIP_FRAMES * _PIXELS, "shortest_edge": _PIXELS},
    "video_processor_type": "Qwen3VLVideoProcessor",
}
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is iterable and message.content is not string %}
{% for part in message.content %}
{% if part.type == 'image' or 'image' in part or 'image_url' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or 'video' in part %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}
{{- part.text }}
{%- endif %}
{% endfor %}
{% else %}
{{- message.content }}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def prepare(model: Path, out: Path) -> None:
    """Write the changed files of the model's folder into `out`. A prepared folder gives the same
    files. Raises OSError, ValueError."""
    tokenizer = _read(model / "tokenizer.json")
    ids = _place(tokenizer)
    _write(out / "tokenizer.json", tokenizer, ensure_ascii=False)
    config = _read(model / "config.json")
    config.update({field: ids[byte] for field, byte in _FIELDS.items()}, vision_config=VISION)
    _write(out / "config.json", dict(sorted(config.items())))
    _write(out / "preprocessor_config.json", {**_PROCESSOR, **_IMAGES})
    _write(out / "video_preprocessor_config.json", {**_PROCESSOR, **_CLIPS})
    settings = _read(model / "tokenizer_config.json")
    special = settings["additional_special_tokens"]
    special += [name for name in PLACEHOLDERS.values() if name not in special]
    settings["chat_template"] = CHAT_TEMPLATE
    _write(out / "tokenizer_config.json", settings)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _place(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Give the placeholders their ids in a tokenizer.json. Return the ids by byte."""
    vocabulary = tokenizer["model"]["vocab"]
    names = {PLACEHOLDERS.get(name, name): token for name, token in vocabulary.items()}
    tokenizer["model"]["vocab"] = names
    known = {item["content"] for item in tokenizer["added_tokens"]}
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [
        {**like, "id": names[name], "content": name}
        for name in PLACEHOLDERS.values()
        if name not in known
    ]
    tokenizer["added_tokens"].sort(key=lambda item: int(item["id"]))
    return {byte: names[name] for byte, name in PLACEHOLDERS.items()}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write(path: Path, content: dict[str, Any], *, ensure_ascii: bool = True) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=ensure_ascii)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[1]))
