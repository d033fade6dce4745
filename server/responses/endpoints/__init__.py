"""Routes of the Responses API, and its ways beside one request and its answer."""
