"""Conversion between text and tokens: tokenizer, chat template, stop strings, tool calls,
grammars."""
