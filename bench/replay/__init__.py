"""`tasuki replay-trace`: traces of real traffic replayed through the prefix tree."""
