"""Trials of grammars: each is compiled first in a process with resource limits from the kernel."""
