"""Exchange of two nodes before, beside and after the bytes: states, messages, contract."""
