"""Mixture of experts: kernels beside their reference."""
