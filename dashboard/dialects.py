"""Inference engines whose metric names can be added to /metrics, in addition to tasuki's own
names."""

GEN_AI = "gen_ai"
"""Dialect with OpenTelemetry's GenAI metric names."""

DIALECTS = ("none", "vllm", "sglang", GEN_AI)
