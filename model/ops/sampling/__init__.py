"""Sampling of the next token: parameters, the PyTorch reference, kernels."""
