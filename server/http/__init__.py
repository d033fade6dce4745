"""The HTTP server: bounds, errors, metrics and the page. No endpoint of OpenAI."""
