"""What a quiet caller of a node gets while two others send it the worst that is let in."""
