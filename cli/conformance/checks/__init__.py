"""The conformance checks, a topic a file. A check returns if it succeeds, else it raises Departure
or Unserved."""
