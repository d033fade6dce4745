"""What users touch: command line, gRPC and HTTP servers, tokenizer and chat template."""
