"""A model that costs nothing, or a given time, in place of one with weights."""
