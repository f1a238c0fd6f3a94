"""Decide which primitives share a kernel, in which order kernels run, and where values are stored.

A graph comes in; groups, addresses and descriptions of kernels go out.  It imports ``program``
and ``lower``.
"""
