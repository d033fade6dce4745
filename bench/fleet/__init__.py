"""`tasuki simulate`: a fleet of prefill nodes in virtual time, with the real prefix tree and the
real choice of nodes."""
