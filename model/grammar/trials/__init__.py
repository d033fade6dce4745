"""Trials of grammars: each is compiled first in a process that the kernel bounds."""
