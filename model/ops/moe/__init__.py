"""Mixture of experts: kernels beside their PyTorch reference."""
