"""Matrix products and SwiGLU: kernels beside their PyTorch reference."""
