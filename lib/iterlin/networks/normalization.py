"""Batch normalisation.

In training, the mean and the variance of a batch couple its examples; in evaluation, running
statistics take their place. A network with batch normalisation is therefore two pure functions of
(params, statistics, x), which a `Normalization` holds.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, PyTree

from iterlin.linearise.parameters import bind_fixed


class Normalization(NamedTuple):
    """The training mode and the evaluation mode of a network with running statistics.

    Attributes:
        initial: Running statistics at the start, a pytree of arrays.
        apply: The network in training, a function from (params, statistics, x) to (outputs,
            statistics). The statistics that it returns are those after this batch; they carry no
            derivative. A network with dropout or other noise takes (params, statistics, x, key).
        evaluate: The network in evaluation, a function from (params, statistics, x) to outputs. It
            treats examples independently.
        f: The network f(params, x) that has these two modes; an `Algorithm` with another f is then
            refused. None if that is not checked.
    """

    initial: PyTree
    apply: Callable[..., tuple[Array, PyTree]]
    evaluate: Callable[[PyTree, PyTree, Array], Array]
    f: Callable[..., Array] | None = None

    def bind_fixed(self, fixed: PyTree) -> "Normalization":
        """Return both modes as functions of the trained parameters, with the others fixed."""
        return self._replace(
            apply=bind_fixed(self.apply, fixed), evaluate=bind_fixed(self.evaluate, fixed), f=None
        )
