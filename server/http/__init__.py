"""The HTTP server: bounds, errors, metrics and the dashboard page. OpenAI's endpoints are in other
packages."""
