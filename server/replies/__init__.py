"""The two ways of sending an answer over HTTP, whichever API asked for it."""
