"""tasuki's own services over gRPC."""
