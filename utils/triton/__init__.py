"""Launch code and kernel functions shared by all Triton kernels."""
