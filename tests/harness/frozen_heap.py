"""Imported by the fork server behind all else that it loads: what stands by then is no garbage.

A child's collections then neither walk it nor write to it. A write would copy its page, and a full
collection writes to every object: with the copies, half of what a daemon's start cost.
"""

import gc

gc.collect()
gc.freeze()
