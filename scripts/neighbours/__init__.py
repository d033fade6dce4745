"""A measurement of isolation between tenants: the service a quiet client gets while two others send
the worst allowed requests."""
