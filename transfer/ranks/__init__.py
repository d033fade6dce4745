"""Hand-overs between nodes of any numbers of ranks: who sends what to whom."""
