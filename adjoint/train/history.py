"""``History``: the logged metrics of each epoch."""

from __future__ import annotations

from adjoint.interop.notebook import history_html

__all__ = ["History"]


class History(list[dict[str, float]]):
    """The logged metrics of each epoch: a list of dictionaries.  Notebooks show it as curves.

    Parameters
    ----------
    iterable : iterable of dict
        The metrics of each epoch, by name.

    Examples
    --------
    >>> from adjoint import train
    >>> history = train.History([{"loss": 2.0}, {"loss": 1.0}])
    >>> history.column("loss")
    [2.0, 1.0]
    """

    def column(self, name: str) -> list[float]:
        """Return the values of one metric in all epochs.

        Parameters
        ----------
        name : str
            The name of the metric.

        Returns
        -------
        list of float
            One value per epoch; NaN for an epoch in which the metric was not logged.
        """
        return [epoch.get(name, float("nan")) for epoch in self]

    def _repr_html_(self) -> str:
        return history_html(self)
