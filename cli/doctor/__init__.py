"""`tasuki doctor`: what this machine lacks to run a node."""
