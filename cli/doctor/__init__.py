"""`tasuki doctor`: checks of this machine before it runs a node."""
