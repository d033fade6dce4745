"""GET /openapi.json, which describes every route that this node serves, and GET /docs, its page."""
