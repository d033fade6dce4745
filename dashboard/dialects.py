"""Engines whose metric names can be added to /metrics beside tasuki's own."""

GEN_AI = "gen_ai"
"""OpenTelemetry's names."""

DIALECTS = ("none", "vllm", "sglang", GEN_AI)
