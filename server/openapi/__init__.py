"""GET /openapi.json, the OpenAPI description of this node's HTTP routes, and GET /docs, its web
page."""
