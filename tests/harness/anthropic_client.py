"""The anthropic client, which asks once; skips a module where it is not installed."""

import pytest

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")


def anthropic_client(address: str | None, api_key: str = "none") -> "anthropic.Anthropic":
    """address: HOST:PORT of an HTTP server."""
    return anthropic.Anthropic(
        base_url=f"http://{address}", api_key=api_key, max_retries=0, timeout=60
    )
