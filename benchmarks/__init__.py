"""Measure adjoint beside its peers, in one interleaved run: ``python -m benchmarks``."""
