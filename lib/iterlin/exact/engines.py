"""Ways to train one linearisation for K full-batch steps other than one by one.

    closed_form          squared loss: K steps from one decomposition of J
    function_space       any loss: K steps of the N O outputs with the kernel, parameters afterwards
    function_space_flow  any smooth convex loss: gradient flow for a time eta K, with the kernel
    flow                 the same by Jacobian products alone, for any N
    minimum              a penalised convex loss: its minimum, K = infinity

The first two are the steps of Algorithm 3 to rounding. A flow is what they tend to as eta goes to
0: at a given eta they differ by a term of first order in eta lambda_max, the `stability` reported.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact import flow, linear_model, newton
from iterlin.exact.flow import Flow, Objective
from iterlin.exact.newton import Minimum
from iterlin.exact.task import Position, Task, kernel_workspace, quadratic, slice_size
from iterlin.gradient_flow import descent_filter, eigenmodes
from iterlin.linearization import tree_add

# Steps between two returns to the caller, who may look at the clock: of a flow, of descent.
FLOW_BURST, DESCENT_BURST = 200, 5000


class ClosedForm:
    """K steps on the squared loss, penalty included: each singular direction of J by itself."""

    def __init__(self, task: Task):
        x, y = task.data
        self.task = task
        factor, targets = quadratic(task.loss, y)

        def parameters(anchor, x, targets, steps):
            modes = eigenmodes(task.f, anchor, x, targets, memory_limit=task.memory_limit)
            rates = factor * modes.eigenvalues + 2 * task.penalty
            filtered = factor * descent_filter(rates, task.step_size, steps)
            return modes.displaced(filtered), task.step_size * jnp.max(rates)

        self._parameters = jax.jit(parameters)
        self._data = (x, targets)

    def begin(self, params: PyTree, before: Position | None = None) -> Position:
        return Position(params, params)

    def forward(self, position: Position, steps: int) -> Position:
        params, stability = self._parameters(position.anchor, *self._data, jnp.asarray(steps))
        spent = position.evaluations + 1
        return position._replace(
            inner=params, steps=steps, evaluations=spent, stability=float(stability)
        )

    def parameters(self, position: Position) -> PyTree:
        return position.inner

    def programs(self, params: PyTree) -> list:
        """What it computes, as jaxprs."""
        return [self._parameters.trace(params, *self._data, jnp.asarray(1)).jaxpr]


class Modelled:
    """What the engines share that work with products with J J^T: by kernel, or by J's products.

    A kind of them says how a linearisation starts (after `before`, if not the first) and goes on;
    each is compiled once.
    """

    def __init__(self, task: Task, *, with_kernel: bool = False):
        self.task, self.with_kernel = task, with_kernel
        self._kernel = (None, ())
        self._start = jax.jit(lambda model, before: self.start(self._objective(*model), before))
        self._go_on = jax.jit(
            lambda model, inner, steps: self.go_on(self._objective(*model), inner, steps)
        )

        def parameters(anchor, x, y, kernel, coordinates):
            model = self._objective(anchor, x, y, kernel).model
            return tree_add(anchor, model.displacement(coordinates))

        self._parameters = jax.jit(parameters)

    def begin(self, params: PyTree, before: Position | None = None) -> Position:
        inner = None if before is None else before.inner
        return self.described(Position(params, self._start(self._arguments(params), inner)))

    def forward(self, position: Position, steps: int) -> Position:
        arguments = self._arguments(position.anchor)
        inner = self._go_on(arguments, position.inner, jnp.asarray(steps, jnp.int32))
        return self.described(position._replace(inner=inner))

    def parameters(self, position: Position) -> PyTree:
        arguments = self._arguments(position.anchor)
        return self._parameters(*arguments, position.inner.coordinates)

    def programs(self, params: PyTree) -> list:
        """What it computes, as jaxprs."""
        model = self._arguments(params)
        start = self._start.trace(model, None)
        inner = jax.eval_shape(self._start, model, None)
        return [start.jaxpr, self._go_on.trace(model, inner, jnp.asarray(1, jnp.int32)).jaxpr]

    def _arguments(self, anchor):
        """Of the compiled functions; the kernel is that of the latest anchor."""
        x, y = self.task.data
        if self.with_kernel and self._kernel[0] is not anchor:
            limit = kernel_workspace(self.task)
            self._kernel = (None, ())  # two at a time may be more than there is room for
            kernel = linear_model.kernel_of(self.task.f, anchor, x, memory_limit=limit)
            self._kernel = (anchor, kernel)
        return anchor, x, y, self._kernel[1]

    def _objective(self, anchor, x, y, kernel) -> Objective:
        task = self.task
        if self.with_kernel:
            model = linear_model.from_kernel(task.f, anchor, x, kernel)
        else:
            size = slice_size(task.f, anchor, x, task.memory_limit)
            model = linear_model.from_products(task.f, anchor, x, slice_size=size)
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


class Descent(NamedTuple):
    """Explicit steps on the way: how many, and where they have led."""

    steps: Int[Array, ""]
    coordinates: PyTree
    image: Float[Array, "N O"]
    solved: Bool[Array, ""]


class Steps(Modelled):
    """Every step, of the N O outputs alone (with the kernel) or with kept activations."""

    def start(self, objective: Objective, before) -> Descent:
        zero, steps = jnp.zeros_like(objective.model.outputs), jnp.asarray(0, jnp.int32)
        return Descent(steps, objective.model.origin, zero, jnp.asarray(False))

    def go_on(self, objective: Objective, inner: Descent, steps) -> Descent:
        solved = self._rule(objective)
        until = jnp.minimum(steps, inner.steps + DESCENT_BURST)

        def step(before: Descent) -> Descent:
            point = before.coordinates, before.image
            slope = objective.slope(*point)
            point = jax.tree.map(lambda a, b: a - self.task.step_size * b, point, slope)
            taken, found = before.steps + 1, before.solved
            if solved is not None:
                found = jax.lax.cond(
                    taken % self.task.solved.check_every == 0,
                    lambda: solved(point, objective.slope(*point)),
                    lambda: found,
                )
            return Descent(taken, *point, found)

        return jax.lax.while_loop(lambda d: (d.steps < until) & ~d.solved, step, inner)

    def described(self, position: Position) -> Position:
        steps, solved = int(position.inner.steps), bool(position.inner.solved)
        return position._replace(steps=steps, evaluations=steps, solved=solved)


class GradientFlow(Modelled):
    """A time eta K of gradient flow."""

    def start(self, objective: Objective, before: Flow | None) -> Flow:
        return flow.begin(objective, before)

    def go_on(self, objective: Objective, inner: Flow, steps) -> Flow:
        rule = self._rule(objective)

        def solved(flow):
            return rule((flow.coordinates, flow.image), (flow.slope, flow.slope_image))

        return flow.advance(
            objective,
            inner,
            steps.astype(inner.image.dtype) * self.task.step_size,
            tolerance=self.task.tolerance,
            max_steps=FLOW_BURST,
            solved=None if rule is None else solved,
        )

    def forward(self, position: Position, steps: int) -> Position:
        before = position.inner.time
        position = super().forward(position, steps)
        flow = position.inner
        # Single precision does not tell one of very many steps from the next: by time, not count.
        if flow.time >= jnp.asarray(steps, jnp.int32).astype(before.dtype) * self.task.step_size:
            return position._replace(steps=steps)
        return position._replace(failed=not flow.solved and bool(flow.time == before))

    def described(self, position: Position) -> Position:
        flow, size = position.inner, self.task.step_size
        return position._replace(
            steps=round(float(flow.time) / size),
            evaluations=int(flow.evaluations),
            stability=size * float(flow.curvature),
            solved=bool(flow.solved),
        )


class ToMinimum(Modelled):
    """Straight to the minimum, however many steps are asked for."""

    def start(self, objective: Objective, before) -> Minimum:
        zero, none = jnp.zeros_like(objective.model.outputs), jnp.asarray(0, jnp.int32)
        return Minimum(objective.model.origin, zero, jnp.ones((), zero.dtype), none, none)

    def go_on(self, objective: Objective, inner: Minimum, steps) -> Minimum:
        return newton.minimize(objective, tolerance=self.task.tolerance)

    def forward(self, position: Position, steps: int) -> Position:
        if position.steps == 0:
            position = super().forward(position, steps)
        return position._replace(steps=steps)

    def described(self, position: Position) -> Position:
        return position._replace(evaluations=int(position.inner.evaluations))
