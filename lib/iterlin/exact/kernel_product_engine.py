"""Base class of the engines that use products with J J^T."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from iterlin.exact import linear_model
from iterlin.exact.flow import Objective
from iterlin.exact.task import Position, Task, slice_size
from iterlin.kernels.cached import CachedKernel
from iterlin.kernels.ntk import KernelMaker
from iterlin.linearise.compiled import SharedJit, as_argument
from iterlin.linearise.devices import to_array
from iterlin.training.losses import training_accuracy

# A displacement or a gradient, as its coordinates and its image (`linear_model.LinearModel`).
Vector = tuple[PyTree, Array]


class KernelProductEngine(ABC):
    """Base class of the engines that use products with J J^T: an `engines.Engine`.

    A subclass writes `start` and `advance`, which are traced by `jax.jit`, and `with_progress`.
    Its state `Position.inner` must have a field `coordinates`.

    Args:
        task: What to minimise.
        with_kernel: Whether to compute and keep J J^T. If not, products are computed from
            Jacobian-vector products.
    """

    def __init__(self, task: Task, *, with_kernel: bool = False):
        self.task, self.with_kernel = task, with_kernel
        self._kernel = (None, CachedKernel())
        self._make = KernelMaker(task.f, task.data[0], memory_limit=task.memory_limit)
        self._start = SharedJit(lambda model, before: self.start(self._objective(*model), before))
        self._advance = SharedJit(
            lambda model, inner, steps: self.advance(self._objective(*model), inner, steps)
        )

        def parameters(model, coordinates):
            displacement = self._objective(*model).model.displacement
            return optax.tree.add(model[0], displacement(coordinates))

        self._parameters = SharedJit(parameters)

    @abstractmethod
    def start(self, objective: Objective, before: Any) -> Any:
        """Return the engine's state at theta_s.

        before: the engine's state at the end of the previous linearisation; None for the first.
        """

    @abstractmethod
    def advance(self, objective: Objective, inner: Any, steps: Array) -> Any:
        """Return the engine's state after a part of the way to `steps`, or all of it.

        steps: gradient steps since theta_s, a traced int32.
        """

    @abstractmethod
    def with_progress(self, position: Position) -> Position:
        """Return the position with the fields that follow from its `inner`, such as `steps`."""

    def begin(self, params: PyTree, before: Position | None = None) -> Position:
        inner = self._start(self._model(params), None if before is None else before.inner)
        return self.with_progress(Position(params, inner))

    def forward(self, position: Position, steps: int) -> Position:
        model = self._model(position.anchor)
        inner = self._advance(model, position.inner, to_array(steps, jnp.int32))
        return self.with_progress(position._replace(inner=inner))

    def parameters(self, position: Position) -> PyTree:
        return self._parameters(self._model(position.anchor), position.inner.coordinates)

    def start_shapes(self, params: PyTree) -> Any:
        return jax.eval_shape(self._start, self._model_shapes(params), None)

    def programs(self, params: PyTree) -> list:
        model, inner = self._model_shapes(params), self.start_shapes(params)
        start = self._start.trace(model, None)
        return [start, self._advance.trace(model, inner, to_array(1, jnp.int32))]

    def _model_shapes(self, params: PyTree) -> tuple[PyTree, CachedKernel]:
        """Return what `_model` returns, with shapes in the place of the kernel's arrays."""
        return params, self._make.shapes(params) if self.with_kernel else CachedKernel()

    def _model(self, anchor) -> tuple[PyTree, CachedKernel]:
        """Return the arguments of `_objective`. Only the latest anchor's kernel is kept."""
        if self.with_kernel and self._kernel[0] is not anchor:
            self._kernel = (None, CachedKernel())  # Memory may not hold two kernels.
            self._kernel = (anchor, self._make(anchor))
        return anchor, self._kernel[1]

    def _objective(self, anchor, kernel) -> Objective:
        task, (x, y) = self.task, self.task.data
        sliced = {"slice_size": slice_size(task.f, anchor, x, task.memory_limit)}
        if self.with_kernel:
            model = linear_model.from_kernel(task.f, anchor, x, kernel.product, **sliced)
        else:
            model = linear_model.from_products(task.f, anchor, x, **sliced)
        return Objective(model, task.loss, y, task.penalty)

    def _solved_test(self, objective: Objective) -> Callable[[Vector, Vector], Bool[Array, ""]]:
        """Return solved(displacement, slope), which tests the task's rule, if there is one."""
        rule = self.task.solved
        if rule is None:
            return lambda displacement, slope: jnp.asarray(False)
        origin = (objective.model.origin, jnp.zeros_like(objective.model.outputs))
        first = objective.gradient_norm(*objective.slope(*origin))

        def solved(displacement, slope) -> Bool[Array, ""]:
            found = jnp.asarray(False)
            if rule.accuracy is not None:
                outputs = objective.model.outputs + displacement[1]
                accuracy = training_accuracy(objective.loss, outputs, objective.targets)
                found |= accuracy >= as_argument(rule.accuracy)
            if rule.gradient is not None:
                found |= objective.gradient_norm(*slope) <= as_argument(rule.gradient) * first
            return found

        return solved
