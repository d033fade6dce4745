"""`tasuki simulate`: a fleet of prefill nodes in virtual time, around the real tree and choice."""
