"""The vLLM version the copied tests belong to."""

from vllm import __version__

__all__ = ["__version__"]
