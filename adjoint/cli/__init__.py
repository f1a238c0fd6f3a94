"""The command-line program ``adjoint``."""
