"""``History``: the logged numbers of each epoch."""

from __future__ import annotations

from adjoint.interop.notebook import history_html

__all__ = ["History"]


class History(list[dict[str, float]]):
    """The logged numbers of each epoch: a list of dictionaries.  Notebooks show it as curves.

    Parameters
    ----------
    iterable : iterable of dict
        The numbers of each epoch.

    Examples
    --------
    >>> from adjoint import train
    >>> history = train.History([{"loss": 2.0}, {"loss": 1.0}])
    >>> history.column("loss")
    [2.0, 1.0]
    """

    def column(self, name: str) -> list[float]:
        """Return the values of one logged number in all epochs; NaN for epochs without it.

        Parameters
        ----------
        name : str
            The name of the number.

        Returns
        -------
        list of float
            The values.
        """
        return [epoch.get(name, float("nan")) for epoch in self]

    def _repr_html_(self) -> str:
        return history_html(self)
