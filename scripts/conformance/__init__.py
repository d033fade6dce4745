"""A server that says what it is asked to say, for `tasuki conformance --dictated`."""
