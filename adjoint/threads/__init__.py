"""Threads: passes over large arrays in several threads, and the helper threads of a parallel backward."""
