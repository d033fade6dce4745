"""Many nodes as one: what each exports, and what is shown of them together."""
