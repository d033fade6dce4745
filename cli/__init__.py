"""The command line: one module a command, folders for those of several files."""
