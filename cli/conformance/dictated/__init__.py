"""Checks of a server whose answers are given: it says what the last message asks it to say.

Such a server finds the last `say: ` of its prompt, reads the JSON string behind it, answers that
text and ends its turn (scripts/conformance/node.py is one). So an answer can be any that a model
might write: calls with damaged tags, calls that are cut off anywhere.
"""
