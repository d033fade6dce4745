"""Layer chunks (layers of one forward sent together): their rows (blocks or states), places,
digests and step counter."""
