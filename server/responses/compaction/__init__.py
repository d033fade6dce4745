"""A conversation made shorter: what stays of it, and a summary of the rest."""
