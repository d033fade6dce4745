"""Kernels over the arena's bytes as a transfer sees them: digests, stores, rows in fewer bytes.

Imported on GPU nodes only.
"""
