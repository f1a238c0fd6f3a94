"""Compile texts to machine code, or find them in memory and in the disk cache.

Texts come in, addresses of functions go out.  It imports ``lower``, ``schedule`` and ``emit``.
"""
