"""Trace a function: call it once on symbols.

A function and its arguments come in, a ``Program`` with guards goes out.  It imports ``program``, ``replay``,
``guards`` and ``loops``.
"""
