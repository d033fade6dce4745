"""Inputs of the draft layer, and the chain of drafts on the device. An input is a token's embedding
with the final hidden state of the token before it; slots carry this state between forwards."""
