"""Whether kernels of this process have a GPU's instructions: Triton's interpreter, by which a CPU
runs them in tests, has none, and what is written in instructions has a twin in the language."""

import triton
import triton.language as tl

HAS_INSTRUCTIONS = tl.constexpr(not triton.knobs.runtime.interpret)
