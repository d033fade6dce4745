"""Messages between nodes and clients: .proto files and their generated stubs."""
