"""Pictures of requests: read from each API's parts, measured, placed in prompts."""
