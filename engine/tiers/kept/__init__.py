"""What a disk keeps beyond its node's end: the folder, the index of what was written, and what
stands again when a node starts."""
