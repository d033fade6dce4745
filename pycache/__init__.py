"""Physical side of the cache: arena, layout, views and copies. The prefix cache joins them to the
tree."""
