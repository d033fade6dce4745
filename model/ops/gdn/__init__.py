"""Gated DeltaNet: kernels beside their references."""
