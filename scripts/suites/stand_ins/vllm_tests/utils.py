"""A replacement for vLLM's `tests/utils.py`: RemoteOpenAIServer starts a real `tasuki serve`.

A server with a reasoning parser gets the model with tool calls and thoughts. With a tool parser
only, it gets the same model without thoughts; any other server gets the embedded one. Flags of the
same name in tasuki are kept; the others are left out.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import anthropic
import openai
import pytest
from served_node import suite_node
from vllm.tokenizers import Served

VLLM_PATH = Path(__file__).parent.parent
ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
_KEPT = frozenset({"--max-model-len", "--max-num-seqs", "--api-key", "--served-model-name"})
_SAME = {"--max_model_len": "--max-model-len"}
_CLIENT_SECONDS = 100.0


def served_model(flags: list[str]) -> str:
    """Return the name of the model served under these vLLM flags."""
    if "--reasoning-parser" in flags:
        return "tool_caller"
    return "tool_caller_quick" if "--tool-call-parser" in flags else "embedded"


def kept_flags(model: str, flags: list[str]) -> list[str]:
    """Return tasuki's flags for the given vLLM flags. model: name of the model in the suite."""
    kept: dict[str, str] = {"--served-model-name": model}
    for flag, value in zip(flags, [*flags[1:], ""], strict=True):
        name, given, joined = flag.partition("=")
        name = _SAME.get(name, name)
        if name in _KEPT:
            kept[name] = joined if given else value
    return [part for pair in kept.items() for part in pair]


class RemoteOpenAIServer:
    """A server running during a block. Raises NodeFailed if it does not start."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        **_settings: Any,
    ) -> None:
        flags = list(map(str, vllm_serve_args))
        key = (env_dict or {}).get("VLLM_API_KEY")
        flags += ["--api-key", key] if key else []
        Served.model = served_model(flags)
        self._node = suite_node(Served.model, kept_flags(model, flags))
        self.url_root = self._node.url
        self.host, _, port = self.url_root.removeprefix("http://").partition(":")
        self.port = int(port)
        self.show_hidden_metrics = False

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._node.stop()

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._settings("v1", settings))

    def get_async_client(self, **settings: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._settings("v1", settings))

    def get_client_anthropic(self, **settings: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**self._settings("", settings))

    def get_async_client_anthropic(self, **settings: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._settings("", settings))

    def _settings(self, path: str, settings: dict[str, Any]) -> dict[str, Any]:
        address = {"base_url": self.url_for(path), "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": _CLIENT_SECONDS, **address, **settings}


def _needs_gpu(*given: Any, **_named: Any) -> Any:
    if len(given) == 1 and callable(given[0]):
        return pytest.mark.skip(reason="needs GPUs")(given[0])
    mark: Callable[[Any], Any] = pytest.mark.skip(reason="needs GPUs")
    return mark


multi_gpu_only = single_gpu_only = multi_gpu_test = large_gpu_test = requires_fp8 = _needs_gpu
