"""Layer operators of Qwen3.5 as functions of tensors: kernels, and beside each its reference in
PyTorch.

The PyTorch operators are the CPU path and the reference of every kernel. A recurrent state has the
shape [value_heads, value_dim, key_dim]. Every operator with state takes the slots to read and to
write. Arena memory not named by an argument may hold NaN and is never read.
"""
