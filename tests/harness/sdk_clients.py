"""Clients of openai and anthropic without retries; a module is skipped if they are not installed.

Both are imported at their first use. An import takes seconds, and each process of a run collects
all modules.
"""

import importlib.util
from typing import Any

import pytest

from tests.harness.waiting import HANG_SECONDS


class _Package:
    """A package imported at the first use of one of its names."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the {name} client is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # The test collector asks every object of a module for its own attributes.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


openai: Any = _Package("openai")
anthropic: Any = _Package("anthropic")


def openai_client(address: str | None, api_key: str = "none") -> "openai.OpenAI":
    """Return a client of the openai package. address: HOST:PORT of an HTTP server."""
    return openai.OpenAI(
        base_url=f"http://{address}/v1", api_key=api_key, max_retries=0, timeout=HANG_SECONDS
    )


def anthropic_client(address: str | None, api_key: str = "none") -> "anthropic.Anthropic":
    """Return a client of the anthropic package. address: HOST:PORT of an HTTP server."""
    return anthropic.Anthropic(
        base_url=f"http://{address}", api_key=api_key, max_retries=0, timeout=60
    )
