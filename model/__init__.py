"""Qwen3.5 layers: config, weights, operators, forward pass and sampler."""
