"""The cases of `tasuki bench kernels`: one module for each kernel family, each with
`cases(stage)`."""
