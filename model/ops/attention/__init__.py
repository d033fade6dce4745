"""Paged full attention: kernels beside their reference."""
