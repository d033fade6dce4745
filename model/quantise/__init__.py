"""Quantised checkpoints made of plain ones, in formats used by publishers."""
