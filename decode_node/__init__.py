"""The daemon that takes a prefix over and writes the answer: the front door."""
