"""Quantised checkpoints made of plain ones, in the formats that others publish."""
