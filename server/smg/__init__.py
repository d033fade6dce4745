"""The engine side of the gRPC protocol spoken by the smg gateway (SGLang's model gateway)."""
