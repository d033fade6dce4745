"""A server with answers dictated by the prompts, for `tasuki conformance --dictated`."""
