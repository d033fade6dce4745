"""What only `tasuki serve` has."""
