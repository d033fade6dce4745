"""Text to tokens and back: tokenizer, chat template, stop strings, tool calls."""
