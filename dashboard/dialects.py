"""Engines whose names of metrics /metrics may offer beside its own."""

DIALECTS = ("none", "vllm", "sglang")
