"""Functions of functions: derivatives in both modes, matrices of them, batching."""
