"""Load on real daemons: a free model for them, client processes of their own, CPU time by role."""
