"""The command line: one module or one folder for each `tasuki` command."""
