"""tasuki's own services over gRPC, and their server."""
