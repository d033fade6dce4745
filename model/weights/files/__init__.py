"""Tensors of safetensors files, as they are stored."""
