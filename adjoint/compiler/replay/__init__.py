"""Run a program on NumPy, with the bits of eager mode.

A ``Program`` comes in, a generated Python function goes out.  It imports ``program``.
"""
