"""Operators of Qwen3.5 in PyTorch: functions of tensors, one file per operator.

They are the CPU path and the reference of every kernel. Recurrent state is K-last, [value_heads,
value_dim, key_dim]. Every operator with state takes the slots to read and to write. Memory without
an argument may hold NaN and is never read.
"""
