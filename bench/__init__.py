"""`tasuki bench`: how near the hardware floor the engine runs, measured in one run with the floor.

bench/cache has scripts of its own environments and is no part of this package.
"""
