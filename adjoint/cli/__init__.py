"""The command line, ``adjoint``."""
