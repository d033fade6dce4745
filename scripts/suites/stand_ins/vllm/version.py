"""The version of the suite."""

from vllm import __version__

__all__ = ["__version__"]
