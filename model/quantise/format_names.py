"""The names of formats that `tasuki quantise` makes; checkpoint.py has what each means."""

FORMATS = ("fp8", "fp8-channel", "fp8-tensor", "nvfp4", "nvfp4-ct", "mixed")

SERVED_ON_GPUS = FORMATS
"""Formats that GPUs have kernels for."""
