"""Engines whose names of metrics /metrics may offer beside its own."""

GEN_AI = "gen_ai"
"""OpenTelemetry's names."""

DIALECTS = ("none", "vllm", "sglang", GEN_AI)
