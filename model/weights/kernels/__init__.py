"""Weights laid out as kernels of a GPU read them."""
