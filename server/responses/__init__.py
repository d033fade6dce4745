"""OpenAI's Responses API: its items to an engine's request, tokens to its items, stored turns."""
