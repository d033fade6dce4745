"""What names nodes, links and callers where many are looked at."""
