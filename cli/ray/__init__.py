"""`tasuki ray`: nodes as actors of a Ray cluster."""
