"""Run a compiled program: the native entry, the native check of guards, threads, and the generated call.

A ``Program`` comes in, a Python function that runs one call goes out.  It imports all folders except ``api``.
"""
