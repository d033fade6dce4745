"""Load on real daemons: a free model for them, separate client processes, CPU time by role."""
