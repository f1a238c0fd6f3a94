"""The tables of 64-bit words that the native entry of a program reads and writes."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Head", "Input", "Kind", "Output", "Part", "Store"]


class Head(IntEnum):
    """The words of the header.  A table has two words: the number of its rows, and their address."""

    BUSY = 0  # 1 during a call
    ARGUMENTS = 1  # the number of arguments
    INPUTS = 2  # a table, see ``Input``
    OUTPUTS = 4  # a table, see ``Output``
    RECORDS = 6  # the number of kernel calls, and the address of their records
    HELPERS = 8  # the number of helper threads that may run chunks
    RELEASES = 9  # whether the GIL is released while kernels run
    CHECKS = 10  # a table of addresses of bytes that are not 0 if a check failed
    ARRAYS = 12  # a table of tensors that get new arrays, see ``Store``
    GRADS = 14  # a table of tensors that get new gradients
    ALWAYS = 16  # whether a call always writes once its kernels have started
    FIRST = 17  # the number of kernel calls that the checks depend on, and the address of their records
    COUNTERS = 19  # a table of step counts in dictionaries
    PARTS = 21  # a table of the parts of a program that calls Python, see ``Part``
    SIZE = 23


class Part(IntEnum):
    """The words in the row of a part: kernel calls, then a call of Python."""

    RECORDS = 0  # the number of kernel calls, and the address of their records
    CALL = 2  # a function without arguments, or 0
    SIZE = 3


class Input(IntEnum):
    """The words in the row of an input."""

    KIND = 0
    OWNER = 1  # an object, a position or, for a cell, the address of a position and a key
    DTYPE = 2  # and the number of axes, and the address of their lengths
    SLOTS = 5  # a table of slots, each with an offset in bytes
    NUMBER = 6  # of a number: the address to which it is written
    HELD = 7  # the array that was read
    SIZE = 8


class Kind(IntEnum):
    """The kinds of inputs."""

    ARGUMENT = 0
    FIXED = 1  # a tensor or an array
    NUMBER = 2  # a Python number that is an argument
    CELL = 3  # an array in a dictionary that is an argument


class Output(IntEnum):
    """The words in the row of an output."""

    DTYPE = 0  # and the number of axes, and the address of their lengths
    NDIM = 1
    SHAPE = 2
    SLOTS = 3  # a table of slots, each with an offset in bytes
    INPUT = 5  # the row of the input whose memory it gets
    GRADED = 6  # the tensor whose gradient it replaces
    SIZE = 7


class Store(IntEnum):
    """The words in the row of a tensor that gets an array or a gradient, or of a step count."""

    OWNER = 0  # the tensor, or the dictionary
    PLACE = 1  # the index of the output
    KEY = 1  # the key in the dictionary
    NEW = 2  # the new version, gradient or count
    SIZE = 3
