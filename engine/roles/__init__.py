"""What an engine of any role does with its requests, where nothing is handed over."""
