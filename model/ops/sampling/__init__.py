"""Sampling: parameters, the reference, kernels."""
