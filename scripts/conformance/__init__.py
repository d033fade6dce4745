"""A server with dictated answers, for `tasuki conformance --dictated`."""
