"""English for messages: articles, plurals and lists of names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["a", "count", "quoted"]


def a(noun: str) -> str:
    """Return a noun with its indefinite article, "a" or "an".

    >>> a("int"), a("float"), a("ufunc"), a("ndarray")
    ('an int', 'a float', 'a ufunc', 'an ndarray')
    """
    sound = noun.lower()
    vowel = sound.startswith((*"aeiou", "nd")) and not sound.startswith(("uf", "uni", "use", "uint", "one"))
    return f"{'an' if vowel else 'a'} {noun}"


def count(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the singular or plural.

    >>> count(1, "kernel"), count(1200, "kernel"), count(2, "batch", "batches")
    ('1 kernel', '1,200 kernels', '2 batches')
    """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas; of more than twelve names, the others are counted.

    >>> quoted(["w", "b"])
    "'w', 'b'"
    """
    shown = [repr(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
