"""Anthropic's Messages API: its conversations to an engine's request, tokens to its replies."""
