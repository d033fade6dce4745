"""What an engine leaves to others before it ends."""
