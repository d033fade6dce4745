"""`tasuki demo`: two daemons, a scripted agent and its hits."""
