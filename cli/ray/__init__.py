"""`tasuki ray`: prefill and decode nodes as actors of a Ray cluster."""
