"""What `tasuki bench kernels` measures: one module a family, each with `cases(stage)`."""
