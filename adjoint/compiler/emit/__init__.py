"""Kernels as LLVM IR text: the writer, vector functions, matrix products and convolutions."""
