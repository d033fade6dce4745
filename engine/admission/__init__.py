"""Who is taken, and until when: promises that an engine makes, and what it expects of itself."""
