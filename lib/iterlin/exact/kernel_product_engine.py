"""Base class of the engines that use products with J J^T."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from iterlin.exact import linear_model
from iterlin.exact.flow import Objective
from iterlin.exact.task import Position, Task, slice_size
from iterlin.kernels.cached import CachedKernel
from iterlin.kernels.ntk import cached_ntk
from iterlin.linearise.linearization import tree_add
from iterlin.linearise.parameters import bind_fixed, combine
from iterlin.training.schedules import Solved

# A displacement or a gradient, as its coordinates and its image (`linear_model.LinearModel`).
Vector = tuple[PyTree, Array]


class KernelProductEngine(ABC):
    """Base class of the engines that use products with J J^T.

    A subclass writes `start` and `advance`, which are traced by `jax.jit`, and `with_progress`.
    Its state `Position.inner` must have a field `coordinates`. The examples and all parameters are
    arguments of the compiled functions, so that each is compiled once for all linearisations.

    Args:
        task: What to minimise.
        with_kernel: Whether to compute and keep J J^T. If not, products are computed from
            Jacobian-vector products.
    """

    def __init__(self, task: Task, *, with_kernel: bool = False):
        self.task, self.with_kernel = task, with_kernel
        self._kernel = (None, CachedKernel())
        self._start = jax.jit(lambda model, before: self.start(self._objective(*model), before))
        self._advance = jax.jit(
            lambda model, inner, steps: self.advance(self._objective(*model), inner, steps)
        )

        def parameters(anchor, fixed, x, y, kernel, coordinates):
            model = self._objective(anchor, fixed, x, y, kernel).model
            return tree_add(anchor, model.displacement(coordinates))

        self._parameters = jax.jit(parameters)

    @abstractmethod
    def start(self, objective: Objective, before: Any) -> Any:
        """Return the engine's state at theta_s.

        Args:
            objective: The linearised objective.
            before: The engine's state at the end of the previous linearisation; None for the first.
        """

    @abstractmethod
    def advance(self, objective: Objective, inner: Any, steps: Array) -> Any:
        """Return the engine's state after a part of the way to `steps`, or all of it.

        Args:
            objective: The linearised objective.
            inner: The engine's state.
            steps: Gradient steps since theta_s, a traced int32.
        """

    @abstractmethod
    def with_progress(self, position: Position) -> Position:
        """Return the position with the fields that follow from its `inner`, such as `steps`.

        Args:
            position: A position with a new `inner`.
        """

    def begin(
        self, params: PyTree, before: Position | None = None, *, fixed: PyTree = ()
    ) -> Position:
        """Linearise at params. See `engines.Engine.begin`."""
        inner = None if before is None else before.inner
        inner = self._start(self._arguments(params, fixed), inner)
        return self.with_progress(Position(params, inner, fixed))

    def forward(self, position: Position, steps: int) -> Position:
        """Train towards `steps`. See `engines.Engine.forward`."""
        arguments = self._arguments(position.anchor, position.fixed)
        inner = self._advance(arguments, position.inner, jnp.asarray(steps, jnp.int32))
        return self.with_progress(position._replace(inner=inner))

    def parameters(self, position: Position) -> PyTree:
        """Return the trained parameters. See `engines.Engine.parameters`."""
        arguments = self._arguments(position.anchor, position.fixed)
        return self._parameters(*arguments, position.inner.coordinates)

    def programs(self, params: PyTree, fixed: PyTree = ()) -> list:
        """Return the jaxprs of the engine. See `engines.Engine.programs`."""
        model = self._arguments(params, fixed)
        start = self._start.trace(model, None)
        inner = jax.eval_shape(self._start, model, None)
        return [start.jaxpr, self._advance.trace(model, inner, jnp.asarray(1, jnp.int32)).jaxpr]

    def _arguments(self, anchor, fixed):
        """Return the arguments of `_objective`. Only the latest anchor's kernel is kept."""
        x, y = self.task.data
        if self.with_kernel and self._kernel[0] is not anchor:
            self._kernel = (None, CachedKernel())  # Memory may not hold two kernels.
            kernel = cached_ntk(
                self.task.f,
                combine(anchor, fixed),
                x,
                trainable=self.task.trainable,
                memory_limit=self.task.memory_limit,
            )
            self._kernel = (anchor, kernel)
        return anchor, fixed, x, y, self._kernel[1]

    def _objective(self, anchor, fixed, x, y, kernel) -> Objective:
        task, f = self.task, bind_fixed(self.task.f, fixed)
        if self.with_kernel:
            model = linear_model.from_kernel(f, anchor, x, kernel.product)
        else:
            size = slice_size(f, anchor, x, task.memory_limit)
            model = linear_model.from_products(f, anchor, x, slice_size=size)
        return Objective(model, task.loss, y, task.penalty)

    def _solved_test(
        self, objective: Objective, rule: Solved
    ) -> Callable[[Vector, Vector], Bool[Array, ""]]:
        """Return solved(displacement, slope), which tests the rule there."""
        origin = (objective.model.origin, jnp.zeros_like(objective.model.outputs))
        first = objective.gradient_norm(*objective.slope(*origin))

        def solved(displacement, slope) -> Bool[Array, ""]:
            found = jnp.asarray(False)
            if rule.accuracy is not None:
                outputs = objective.model.outputs + displacement[1]
                correct = jnp.argmax(outputs, -1) == objective.targets
                found |= jnp.mean(correct) >= rule.accuracy
            if rule.gradient is not None:
                found |= objective.gradient_norm(*slope) <= rule.gradient * first
            return found

        return solved
