"""Operators of Qwen3.5 in PyTorch: functions of tensors, one file an operator.

They are the CPU path and the oracle of any kernel. Recurrent state is K-last, [value_heads,
value_dim, key_dim], and every operator with state takes the slots it reads and writes. Memory that
no argument points at may hold NaN and is never read.
"""
