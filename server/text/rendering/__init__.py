"""The inside of a chat template's rendering: the compiled template, its marks, names that are
hidden meanwhile, and where messages end."""
