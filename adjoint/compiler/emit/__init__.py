"""Write kernels as LLVM IR text: loops, matrix products, convolutions and vector functions.

Groups of primitives come in, texts go out.  It imports ``lower`` and ``schedule``.
"""
