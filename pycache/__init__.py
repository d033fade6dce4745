"""The physical side of the cache: arena, layout, views, copies, and the prefix cache that joins
them to the tree."""
