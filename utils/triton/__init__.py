"""Common launch code of all Triton kernels."""
