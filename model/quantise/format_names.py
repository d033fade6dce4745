"""Names of the formats made by `tasuki quantise`; checkpoint.py explains them."""

FORMATS = ("fp8", "fp8-channel", "fp8-tensor", "nvfp4", "nvfp4-ct", "mixed")

SERVED_ON_GPUS = FORMATS
"""Names of the formats with kernels for GPUs."""
