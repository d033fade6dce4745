"""The engine side of the gRPC protocol spoken by the model gateway smg."""
