"""Rewrite a program as a graph of primitives.

A ``Program`` comes in, a ``Dataflow`` graph goes out, in which equal nodes are shared and constants are
folded.  It imports ``program`` and ``loops``.
"""
