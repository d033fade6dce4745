"""What every room has, whichever way its bytes go."""
