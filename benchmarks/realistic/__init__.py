"""Programs as users write them, in adjoint, PyTorch and JAX: a module per family, with ``CASES``."""
