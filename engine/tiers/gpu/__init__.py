"""Copies between a GPU's arena and pinned host memory."""
