"""Verification of drafts in a GDN layer: outputs are computed now, states are stored once the
number of accepted tokens is known."""
