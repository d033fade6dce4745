"""A module imported last by the fork server. All objects existing by then are exempt from garbage
collection.

A child's collections then neither walk these objects nor write to them. A write would copy the
object's page, and a full collection writes to every object. The copies were half of the cost of a
daemon's start.
"""

import gc

gc.collect()
gc.freeze()
