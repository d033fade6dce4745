"""A model with no cost, or a given cost, in place of one with weights."""
