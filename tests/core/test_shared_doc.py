"""Docstrings that are put together from the sections of a family."""

from __future__ import annotations

import inspect

from adjoint.core.docstrings import SharedDoc

family = SharedDoc("""
    Parameters
    ----------
    x, y : array_like
        The arguments.
    axis : int, optional
        The axis.
    keep : bool
        Whether
        to keep it.
    *rest : array_like
        The others.

    Returns
    -------
    Tensor
        The result.
    """)
checked = family.extended("""
    Parameters
    ----------
    axis : int
        Another axis.

    Raises
    ------
    ShapeError
        If the shapes differ.
    """)


def test_missing_entries_and_sections_are_added_in_order():
    @family
    def f(x, y, power, *rest, keep, axis=None, **options):
        """Return something.

        It has two paragraphs.

        Parameters
        ----------
        power : float
            The power.
        **options : object
            Options.

        Examples
        --------
        >>> ad.ones(2).sum().item()
        2.0
        """

    assert f.__doc__ == inspect.cleandoc("""Return something.

        It has two paragraphs.

        Parameters
        ----------
        x, y : array_like
            The arguments.
        power : float
            The power.
        *rest : array_like
            The others.
        keep : bool
            Whether
            to keep it.
        axis : int, optional
            The axis.
        **options : object
            Options.

        Returns
        -------
        Tensor
            The result.

        Examples
        --------
        >>> import adjoint as ad
        >>> ad.ones(2).sum().item()
        2.0
        """)


def test_own_entries_and_sections_come_first():
    @checked
    def f(axis, keep):
        """Return something.

        Parameters
        ----------
        keep : int
            My own.

        Returns
        -------
        int
            A number.

        Notes
        -----
        None.
        """

    assert f.__doc__.splitlines()[2:] == [
        *("Parameters", "----------", "axis : int", "    Another axis.", "keep : int", "    My own.", ""),
        *("Returns", "-------", "int", "    A number.", ""),
        *("Raises", "------", "ShapeError", "    If the shapes differ.", ""),
        *("Notes", "-----", "None."),
    ]


def test_two_families_complete_each_other():
    @family
    @SharedDoc(
        "Raises\n------\nShapeError\n    Always.\n\nParameters\n----------\naxis : int\n    The only one."
    )
    def f(axis, keep):
        """Return something."""

    assert "axis : int\n    The only one.\nkeep : bool\n    Whether" in f.__doc__
    assert f.__doc__.index("Returns") < f.__doc__.index("Raises")


def test_a_class_gets_the_parameters_of_its_constructor_alone():
    class Base:
        def __init__(self, keep):
            pass

    @checked
    class Derived(Base):
        """A class."""

    assert Derived.__doc__ == (
        "A class.\n\nParameters\n----------\nkeep : bool\n    Whether\n    to keep it."
    )


def test_examples_import_adjoint():
    @family
    def f(keep):
        """Return something.

        Examples
        --------
        >>> ad.ones(2).sum().item()
        2.0
        """

    @family
    @family
    def g(keep):
        """Return something.

        Examples
        --------
        >>> import numpy as np, adjoint as ad
        >>> ad.ones(2).sum().item()
        2.0
        """

    assert f.__doc__.endswith(
        "Examples\n--------\n>>> import adjoint as ad\n>>> ad.ones(2).sum().item()\n2.0"
    )
    assert g.__doc__.endswith(
        "Examples\n--------\n>>> import numpy as np, adjoint as ad\n>>> ad.ones(2).sum().item()\n2.0"
    )


def test_examples_at_the_end_need_no_heading():
    @family
    @family
    def f(keep, power):
        """Return something.

        Parameters
        ----------
        power : float
            The power.

        >>> ad.ones(2).sum().item()
        2.0

        >>> "a second paragraph"
        'a second paragraph'
        """

    assert f.__doc__.endswith(
        "The result.\n\nExamples\n--------\n>>> import adjoint as ad\n>>> ad.ones(2).sum().item()\n2.0\n\n"
        ">>> \"a second paragraph\"\n'a second paragraph'"
    )


def test_the_result_is_taken_from_the_summary():
    returning = SharedDoc("Returns\n-------\nTensor\n    {summary}")

    @returning
    def value():
        """Return the sum, rounded.

        A paragraph.
        """

    @returning
    def action():
        """Reverse the order."""

    assert value.__doc__.endswith("\n\nReturns\n-------\nTensor\n    The sum, rounded.")
    assert action.__doc__.endswith("\n\nReturns\n-------\nTensor\n    The result.")


def test_nothing_is_added_where_docstrings_are_stripped():
    @family
    def f(x, y):
        pass

    assert f.__doc__ is None
