"""Compiled functions and training steps as libraries without Python: C, WebAssembly, and ctypes with NumPy.

A traced program of ``ad.compile`` comes in; an object file with its kernels, a calling function and the
initial state goes out, with a header or a module that loads it.
"""
