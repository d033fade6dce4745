"""The service a quiet caller of a node gets while two others send the worst allowed requests."""
