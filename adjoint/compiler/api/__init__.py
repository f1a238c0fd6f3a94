"""``ad.compile``: keys and programs of a compiled function, ``explain`` and ``compiling("check")``.

Calls of the user come in; each is run by a program that is captured, built and kept here.  It imports all
other folders.
"""
