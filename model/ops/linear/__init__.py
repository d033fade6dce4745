"""Products and activations: kernels beside their reference."""
