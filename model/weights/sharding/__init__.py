"""What of a model's weights each of several ranks has."""
