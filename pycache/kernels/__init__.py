"""What Triton kernels of every folder share; imported where there is a GPU only."""
