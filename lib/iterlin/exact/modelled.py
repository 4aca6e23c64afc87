"""What the engines share that work with products with J J^T, whose model is one of two."""

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


class Modelled:
    """An engine that works with products with J J^T: by kernel, or by J's products.

    A kind of them says how a linearisation starts (after `before`, if not the first) and goes on;
    each is compiled once, with the examples and all parameters as arguments.
    """

    def __init__(self, task: Task, *, with_kernel: bool = False):
        self.task, self.with_kernel = task, with_kernel
        self._kernel = (None, CachedKernel())
        self._start = jax.jit(lambda model, before: self.start(self._objective(*model), before))
        self._go_on = jax.jit(
            lambda model, inner, steps: self.go_on(self._objective(*model), inner, steps)
        )

        def parameters(anchor, fixed, x, y, kernel, coordinates):
            model = self._objective(anchor, fixed, x, y, kernel).model
            return tree_add(anchor, model.displacement(coordinates))

        self._parameters = jax.jit(parameters)

    def begin(
        self, params: PyTree, before: Position | None = None, *, fixed: PyTree = ()
    ) -> Position:
        inner = None if before is None else before.inner
        inner = self._start(self._arguments(params, fixed), inner)
        return self.described(Position(params, inner, fixed))

    def forward(self, position: Position, steps: int) -> Position:
        arguments = self._arguments(position.anchor, position.fixed)
        inner = self._go_on(arguments, position.inner, jnp.asarray(steps, jnp.int32))
        return self.described(position._replace(inner=inner))

    def parameters(self, position: Position) -> PyTree:
        arguments = self._arguments(position.anchor, position.fixed)
        return self._parameters(*arguments, position.inner.coordinates)

    def programs(self, params: PyTree, fixed: PyTree = ()) -> list:
        """What it computes, as jaxprs."""
        model = self._arguments(params, fixed)
        start = self._start.trace(model, None)
        inner = jax.eval_shape(self._start, model, None)
        return [start.jaxpr, self._go_on.trace(model, inner, jnp.asarray(1, jnp.int32)).jaxpr]

    def _arguments(self, anchor, fixed):
        """Of the compiled functions; the kernel is that of the latest anchor."""
        x, y = self.task.data
        if self.with_kernel and self._kernel[0] is not anchor:
            self._kernel = (None, CachedKernel())  # two may be more than there is room for
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

    def _rule(self, objective: Objective):
        """solved(point, slope), both coordinates and image, as the task's rule says; or None."""
        rule = self.task.solved
        if rule is None:
            return None
        origin = (objective.model.origin, jnp.zeros_like(objective.model.outputs))
        first = objective.gradient_norm(*objective.slope(*origin))

        def solved(point, slope) -> Bool[Array, ""]:
            found = jnp.asarray(False)
            if rule.accuracy is not None:
                outputs = objective.model.outputs + point[1]
                correct = jnp.argmax(outputs, -1) == objective.targets
                found |= jnp.mean(correct) >= rule.accuracy
            if rule.gradient is not None:
                found |= objective.gradient_norm(*slope) <= rule.gradient * first
            return found

        return solved
