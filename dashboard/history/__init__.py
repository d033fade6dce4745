"""A node's recent history, and the views of it shown on the page."""
