"""`tasuki bench`: the engine's distance from the hardware floor, both measured in one run.

bench/cache has scripts of its own environments and is no part of this package.
"""
