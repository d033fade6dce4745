"""From an answer's text to its parts: reasoning, content, tool calls. State machines that are fed
with text as it comes, whose result does not depend on how it was cut."""
