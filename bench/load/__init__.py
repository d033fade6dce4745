"""Load on real daemons: a cost-free model for them, separate client processes, CPU time by role."""
