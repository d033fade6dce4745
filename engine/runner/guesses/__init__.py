"""Drafts that the model's draft layer proposes on a GPU, behind what a forward draws."""
