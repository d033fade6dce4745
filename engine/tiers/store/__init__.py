"""Where a tier's pages and slots lie, whatever that is, and copies to and from it."""
