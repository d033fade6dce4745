"""What nodes and clients say to each other: .proto files and their generated stubs."""
