"""Memory of the cache: the arena (one allocation for all pages and slots), its layout, its views
and its copies. The prefix cache joins this memory to the prefix tree."""
