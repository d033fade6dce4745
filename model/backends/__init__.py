"""The operators of a model on PyTorch and on Triton, behind one protocol."""
