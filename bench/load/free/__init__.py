"""A cost-free model in place of one with weights: forwards take no time, or a given time."""
