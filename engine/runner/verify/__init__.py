"""Rows with drafts on a GPU: computed by graphs of their own, folded once they have landed."""
