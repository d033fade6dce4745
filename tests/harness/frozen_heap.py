"""A module that the fork server imports last. All objects that exist by then are exempt from
garbage collection.

A child's collections then neither walk these objects nor write to them. A write would copy the
object's page, and a full collection writes to every object. The copies were half of the cost of a
daemon's start.
"""

import gc

gc.collect()
gc.freeze()
