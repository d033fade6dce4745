"""RMS norm: the kernel beside its PyTorch reference."""
