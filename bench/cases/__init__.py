"""The cases of `tasuki bench kernels`: one module a family, each with `cases(stage)`."""
