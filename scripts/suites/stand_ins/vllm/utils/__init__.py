"""Helpers that vLLM's tests import."""
