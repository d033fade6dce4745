"""What every Triton kernel is launched with."""
