"""Trial compilations of grammars: each grammar is compiled first in a process with resource limits
kept by the kernel."""
