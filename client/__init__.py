"""The caller's side: sessions over gRPC."""
