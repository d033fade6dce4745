"""What the draft layer's entries are made of: a token's embedding and the final hidden state of the
token before it, and how that state is carried from one forward to the next."""
