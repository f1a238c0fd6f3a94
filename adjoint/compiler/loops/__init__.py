"""Loops as one instruction: ``ad.scan`` and its relatives, their derivatives and batches.

The body of a loop comes in, an instruction with the program of one iteration goes out.  It imports
``program`` and ``replay``.
"""
