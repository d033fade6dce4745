"""The engine side of the smg gateway's protocol."""
