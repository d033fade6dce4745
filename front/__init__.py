"""What users touch: command line, gRPC servers, tokenizer and chat template."""
