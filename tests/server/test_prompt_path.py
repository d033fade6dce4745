"""Tests of a prompt's way from the HTTP handler to the tree, counted in files. docs/design.md, "A
prompt's way", lists them.

A file is on the way if one of its functions returns the prompt, queues it, or passes it on in a
call. The call must lead towards the queue or the tree. The prompt's form may be the body's bytes, a
message's text, tokens, or an object that holds one of these. A function that only looks at a
prompt, as a bound or a metric does, is no part of the way.
"""

import asyncio
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import numpy as np

from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.assembly.parts import build_parts
from tasuki.model.named_checkpoints import embedded_model
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import ClientFront
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.running_engine import NearEngine
from tasuki.server.text.text_codec import TextCodec
from tests.harness.engines import engine_config
from tests.harness.http_calls import ask

ROOT = Path(__file__).parents[2]
MOST_FILES = 20
PROMPT = "The sash that one runner of a relay hands to the next."
FIRST = "server/openai/generation.py"
TREE = "pycache/prefix_cache.py"


class PromptPath:
    """The files passed by a prompt, in order. Thread rule: trace() on any thread."""

    def __init__(self, tokens: list[int]) -> None:
        self.files: dict[str, None] = {}
        # Text around the prompt may join its first and its last token.
        self._tokens = np.array(tokens[1:-1], dtype=np.int32).tobytes()
        self._began = False
        self._arrived = False

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        """Trace an event of sys.setprofile. argument: the value returned, or the built-in
        called."""
        file = production_file(frame)
        if file is None or self._arrived:
            return
        self._began |= file == FIRST
        if not self._began:
            return
        if event == "return" and not in_a_comprehension(frame) and self._holds(argument):
            self.files.setdefault(file)
        elif event in ("c_call", "c_return") and self._is_queued(argument, event, frame):
            self._add_stack(frame)
        elif event == "call" and file == TREE and self._is_in(frame):
            self._add_stack(frame)
            self._arrived = True

    def _is_queued(self, built_in: Any, event: str, frame: FrameType) -> bool:
        """Return true if a thread's queue gets the prompt, or a deque has just taken it."""
        queue = getattr(built_in, "__self__", None)
        if isinstance(queue, SimpleQueue):
            return event == "c_call" and built_in.__name__ == "put" and self._is_in(frame)
        return event == "c_return" and isinstance(queue, deque) and self._holds(list(queue))

    def _add_stack(self, frame: FrameType | None) -> None:
        """Add the files of all frames that hold the prompt, the outermost caller first."""
        found = []
        while frame is not None:
            file = production_file(frame)
            if file is not None and self._is_in(frame):
                found.append(file)
            frame = frame.f_back
        self.files.update(dict.fromkeys(reversed(found)))

    def _is_in(self, frame: FrameType) -> bool:
        return any(self._holds(value) for name, value in frame.f_locals.items() if name != "self")

    def _holds(self, value: object, depth: int = 4) -> bool:
        if isinstance(value, str):
            return PROMPT in value
        if isinstance(value, bytes | bytearray):
            return PROMPT.encode() in value
        if isinstance(value, np.ndarray) and value.dtype == np.int32:
            return self._tokens in value.tobytes()
        if isinstance(value, list) and value and isinstance(value[0], int):
            return self._tokens in np.array(value, dtype=np.int32).tobytes()
        return depth > 0 and any(self._holds(part, depth - 1) for part in parts(value))


@cache
def production(filename: str) -> str | None:
    listed = Path(filename)
    if not listed.is_relative_to(ROOT):
        return None
    relative = listed.relative_to(ROOT)
    return None if relative.parts[0] in ("tests", ".venv") else str(relative)


def in_a_comprehension(frame: FrameType) -> bool:
    return frame.f_code.co_name.startswith("<")


def production_file(frame: FrameType) -> str | None:
    return production(frame.f_code.co_filename)


def parts(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, partial):
        yield from value.args
    elif type(value).__module__.startswith("tasuki."):
        yield from getattr(value, "__dict__", {}).values()


async def traced_path() -> list[str]:
    config = engine_config(embedded_model())
    loaded = build_parts(config)
    codec = TextCodec.load(Path(config.model), loaded.model_config.vocab, 4096)
    engine = build_fused_engine(config, loaded, build_cache(config, loaded))
    front = ServerConfig(bind="127.0.0.1:0", http_bind="127.0.0.1:0")
    clients = ClientFront(
        *(config, front, loaded.model_config, codec), *(engine.max_request_tokens, engine.max_batch)
    )
    path = PromptPath(codec.require_tokenizer().encode(PROMPT))
    threading.setprofile(path.trace)
    sys.setprofile(path.trace)
    try:
        node = Node(
            NearEngine(engine),
            front,
            clients,
            about_node("serve", "fused", config.model, front),
        )
        await node.startup()
        try:
            assert node.http_address is not None
            await asyncio.to_thread(chat, node.http_address)
        finally:
            await node.shutdown()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(path.files)


def chat(address: str) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": 2}
    assert ask(address, "POST", "/v1/chat/completions", body).status == 200


def documented_path() -> list[str]:
    """Return the numbered files of docs/design.md, "A prompt's way"."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    _, _, section = text.partition("### A prompt's way")
    return re.findall(r"^\d+\. `([^`]+)`", section.partition("\n## ")[0], re.MULTILINE)


def test_a_prompt_passes_few_files_from_http_to_the_tree() -> None:
    files = asyncio.run(traced_path())
    listed = "\n".join([f"{len(files)} files:", *files])
    assert files[-1] == TREE, listed
    assert len(files) <= MOST_FILES, listed
    assert sorted(files) == sorted(documented_path()), f"docs/design.md lists others; {listed}"
