"""Inputs of the draft layer's entries: a token's embedding and the final hidden state of the token
before it. Carry of this state between forwards."""
