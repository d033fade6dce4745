"""From an answer's text to its parts: reasoning, content, tool calls. State machines fed with text
as it comes. Their result does not depend on how the text was cut."""
