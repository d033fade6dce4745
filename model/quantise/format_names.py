"""The names of formats made by `tasuki quantise`; checkpoint.py has their meaning."""

FORMATS = ("fp8", "fp8-channel", "fp8-tensor", "nvfp4", "nvfp4-ct", "mixed")

SERVED_ON_GPUS = FORMATS
"""Formats with kernels for GPUs."""
