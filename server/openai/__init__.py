"""OpenAI's endpoints: request fields to an engine's request, tokens to replies."""
