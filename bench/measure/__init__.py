"""The tools common to every bench: timers, hardware floors, the host's description, the report."""
