"""Engines whose metric names /metrics can offer beside tasuki's own names."""

GEN_AI = "gen_ai"
"""OpenTelemetry's names."""

DIALECTS = ("none", "vllm", "sglang", GEN_AI)
