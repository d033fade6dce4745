"""The user-facing parts: command line, gRPC and HTTP servers, tokenizer and chat template."""
