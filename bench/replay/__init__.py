"""`tasuki replay-trace`: traces of real traffic through the tree."""
