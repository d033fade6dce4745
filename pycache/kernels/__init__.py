"""Triton kernels that move the cache's bytes; imported where there is a GPU only."""
