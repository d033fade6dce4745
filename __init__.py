"""tasuki: a hybrid prefix cache, handed from the node that reads a prompt to the node that answers
it."""

__version__ = "0.1.0"
