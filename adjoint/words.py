"""English for messages: articles and plurals."""

from __future__ import annotations

__all__ = ["a", "count"]


def a(noun: str) -> str:
    """Return a noun with its article.

    >>> a("int"), a("float"), a("ufunc"), a("ndarray")
    ('an int', 'a float', 'a ufunc', 'an ndarray')
    """
    sound = noun.lower()
    vowel = sound.startswith((*"aeiou", "nd")) and not sound.startswith(("uf", "uni", "use", "uint", "one"))
    return f"{'an' if vowel else 'a'} {noun}"


def count(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> count(1, "kernel"), count(1200, "kernel"), count(2, "batch", "batches")
    ('1 kernel', '1,200 kernels', '2 batches')
    """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
