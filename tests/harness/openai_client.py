"""The openai client, which asks once; skips a module where it is not installed."""

import pytest

from tests.harness.waiting import HANG_SECONDS

openai = pytest.importorskip("openai", reason="the openai client is not installed")


def openai_client(address: str | None, api_key: str = "none") -> "openai.OpenAI":
    """address: HOST:PORT of an HTTP server."""
    return openai.OpenAI(
        base_url=f"http://{address}/v1", api_key=api_key, max_retries=0, timeout=HANG_SECONDS
    )


anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")


def anthropic_client(address: str | None, api_key: str = "none") -> "anthropic.Anthropic":
    """address: HOST:PORT of an HTTP server."""
    return anthropic.Anthropic(
        base_url=f"http://{address}", api_key=api_key, max_retries=0, timeout=60
    )
