"""Kernels over the arena's bytes as a transfer sees them: digests. Imported on GPU nodes only."""
