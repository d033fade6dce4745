"""OpenTelemetry spans of requests and hand-overs."""
