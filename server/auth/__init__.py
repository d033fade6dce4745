"""Who calls, what their key lets them do, and how much of it."""
