"""One layer chunk: its rows, their places, their digests and their counts."""
