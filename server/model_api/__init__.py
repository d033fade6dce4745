"""What clients ask about the served model itself: its names, and its tokens of a text."""
