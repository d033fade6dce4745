"""What one window is: its rows, where they go, how they are digested and counted."""
