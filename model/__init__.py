"""Qwen3.5 models: config, weights, layer operators, forward pass and sampler."""
