"""GET /openapi.json, the description of this node's routes, and GET /docs, its page."""
