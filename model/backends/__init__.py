"""The layer operators of a model in two implementations, PyTorch and Triton, behind one
protocol."""
