"""WebSockets: how many are open, and what each may cost."""
