"""The GPU's operators: one Triton kernel, or a family of them, a file.

Each file names its plain-torch twin, launches without host syncs and lists in `compile_specs` what
the ahead-of-time check compiles. Only these files and pycache/kernels import triton.
"""
