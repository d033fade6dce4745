"""Front workers: processes that answer callers side by side, and what stays one for the node."""
