"""What a traced function has read and changed, and whether it is still the same.

User code comes in and runs with hooks; a tree of reads goes out.  It imports ``program``, for its symbols.
"""
