"""Full attention over paged KV: kernels beside their PyTorch reference."""
