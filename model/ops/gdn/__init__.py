"""Gated DeltaNet layers: kernels beside their PyTorch references."""
