"""What two nodes exchange before, beside and after the bytes: states, messages, contract."""
