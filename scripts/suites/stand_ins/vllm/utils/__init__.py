"""Helpers imported by vLLM's tests."""
