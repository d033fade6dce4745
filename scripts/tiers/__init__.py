"""`make soak-tiers`: random loads from host memory, with and without a model, while copies fail."""
