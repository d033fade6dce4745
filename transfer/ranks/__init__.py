"""Hand-overs between nodes of any numbers of ranks: the sender, bytes and target of each link."""
