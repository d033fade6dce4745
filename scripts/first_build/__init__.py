"""What `make` does before tasuki is there: looks at the machine, chooses torch, keeps pip's output;
and whether a wheel needs none of that.

needs, torch_choice and logged_step run on the interpreter that builds, whichever it is, with
nothing installed: the standard library and the syntax of Python 3.8.
"""
