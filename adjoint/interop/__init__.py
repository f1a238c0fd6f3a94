"""Where adjoint meets other libraries."""
