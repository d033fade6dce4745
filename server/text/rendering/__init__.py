"""The inside of a chat template's rendering: the compiled template, its marks, hidden names, and
the ends of messages."""
