"""The steps of `make` before tasuki is installed: checks of the machine, the choice of torch, pip's
output; and a test of a wheel without them.

needs, torch_choice and logged_step run on the building interpreter, of any version, with nothing
installed. They use the standard library and the syntax of Python 3.8.
"""
