"""The step counter: of how many layers, of any kind, an engine has written KV and state for good
since it started. It is compiled (cpp_cache/steps/step_counter.h), since it is ticked and
awaited where nobody may wait for the interpreter.

Thread rule: one thread ticks, any thread reads, waits and sets alarms. Invariant: the value only
grows.
"""

from tasuki.pycache._cpp_cache import StepCounter as StepCounter
