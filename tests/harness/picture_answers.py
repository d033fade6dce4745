"""Golden chats with pictures, in OpenAI's form, and their requests over HTTP."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasuki.model.vision.config import VisionConfig
from tests.harness.daemons import Node
from tests.harness.goldens import BESIDE
from tests.harness.http_calls import Reply, ask
from tests.harness.picture_files import data_url

FOLDER = BESIDE / "vision-dense"
CHAT = "/v1/chat/completions"


def special_ids() -> tuple[int, int]:
    """Return the ids of a picture's opening token and of its placeholder."""
    config = VisionConfig.load(FOLDER) if FOLDER.is_dir() else None
    return (0, 0) if config is None else (config.tokens.start, config.tokens.image)


def golden_cases() -> dict[str, dict[str, Any]]:
    """Return the cases of chats, by name."""
    file = FOLDER / "golden.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    return {case["name"]: case for case in cases if case.get("raw_text") is None}


CASES = golden_cases()
START, IMAGE = special_ids()


def data_url_of(folder: Path, name: str) -> str:
    """Return a golden picture's file as a URL. folder: of its checkpoint."""
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    return data_url((folder / "images" / name).read_bytes(), kind)


def url_of(name: str) -> str:
    return data_url_of(FOLDER, name)


def frame_files(clip: str, folder: Path = FOLDER) -> list[Path]:
    """Return the files of a golden clip's frames, in order. folder: of its checkpoint."""
    return sorted((folder / "images").glob(f"{clip}-*.png"))


def part_of(part: Mapping[str, Any], folder: Path = FOLDER) -> dict[str, Any]:
    """Return a part of a golden message in OpenAI's form, and a clip in Qwen's."""
    if part["type"] == "image":
        return {"type": "image_url", "image_url": {"url": data_url_of(folder, part["image"])}}
    if part["type"] == "video":
        frames = [data_url_of(folder, file.name) for file in frame_files(part["video"], folder)]
        return {"type": "video", "video": frames, "fps": 2}
    return dict(part)


def messages_of(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    return golden_messages(case, FOLDER)


def golden_messages(case: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the messages of a golden case of a checkpoint in OpenAI's form."""
    return [
        {**message, "content": [part_of(part, folder) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in case["messages"]
    ]


def chat(node: Node, messages: object, tokens: int = 20, **fields: object) -> Reply:
    body = {
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
        **fields,
    }
    return ask(node.http_address, "POST", CHAT, body)


def cached(reply: Reply) -> int:
    found: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found
