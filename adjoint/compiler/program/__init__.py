"""What a trace produces: instructions on symbols, the inputs that a program reads, and its writes.

Everything comes in from ``capture``; all later stages read it.  It imports no other folder of the compiler.
"""
