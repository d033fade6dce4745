"""Parts of chat template rendering: the compiled template, hiding of special token names, and the
positions of message ends."""
