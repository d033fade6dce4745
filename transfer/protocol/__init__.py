"""Agreement of two nodes before bytes move: the contract, and the messages about it as protobuf."""
