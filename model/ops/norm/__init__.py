"""RMS norm: the kernel beside its reference."""
