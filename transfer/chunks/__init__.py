"""One layer chunk (layers of one forward sent together): its rows, their places, digests and
counts."""
