"""`tasuki bench`: how near the hardware floor the engine runs, measured in one run with the floor.

bench/cache and bench/traces are scripts of their own environments and no part of this package.
"""
