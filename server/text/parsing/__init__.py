"""Parsers of an answer's text into its parts: reasoning, content, tool calls. They are state
machines fed with text as it comes. The division of the text into segments does not change their
result."""
