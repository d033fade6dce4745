"""The steps of `make` before tasuki is installed, and a test of a built wheel.

The steps are the checks of the machine, the choice of torch, and pip's output.

needs, torch_choice and logged_step run on the building interpreter, of any version, with nothing
installed. They use the standard library and the syntax of Python 3.8.
"""
