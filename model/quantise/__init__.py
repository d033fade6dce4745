"""Conversion of plain checkpoints into the quantised formats of common publishers."""
