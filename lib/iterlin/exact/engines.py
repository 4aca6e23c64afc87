"""Ways to train one linearisation for K full-batch steps other than one by one.

    closed_form             squared loss: K steps from one decomposition of J
    function_space          any loss: K steps of the N O outputs with the kernel, then parameters
    function_space_flow     any smooth convex loss: gradient flow for a time eta K, with the kernel
    flow                    the same by Jacobian products alone, for any N
    function_space_minimum  a penalised convex loss: its minimum, K = infinity, with the kernel
    minimum                 the same by Jacobian products alone

The first two are the steps of Algorithm 3 to rounding. A flow is what they tend to as eta goes to
0: at a given eta they differ by a term of first order in eta lambda_max, the `stability` reported.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact import flow, newton
from iterlin.exact.flow import Flow, Objective
from iterlin.exact.modelled import Modelled
from iterlin.exact.newton import Minimum
from iterlin.exact.task import Position, Task, quadratic
from iterlin.kernels.gradient_flow import eigenmodes
from iterlin.linearise.parameters import bind_fixed
from iterlin.linearise.spectral_filters import descent_filter

# Steps between two returns to the caller, who may look at the clock: of a flow, of descent.
FLOW_BURST, DESCENT_BURST = 200, 5000


class ClosedForm:
    """K steps on the squared loss, penalty included: each singular direction of J by itself.

    It decomposes J anew wherever it is to stop.
    """

    def __init__(self, task: Task):
        x, y = task.data
        self.task = task
        factor, targets = quadratic(task.loss, y)

        def parameters(anchor, fixed, x, targets, steps):
            f = bind_fixed(task.f, fixed)
            modes = eigenmodes(f, anchor, x, targets, memory_limit=task.memory_limit)
            rates = factor * modes.eigenvalues + 2 * task.penalty
            filtered = factor * descent_filter(rates, task.step_size, steps)
            return modes.displaced(filtered), task.step_size * jnp.max(rates)

        self._parameters = jax.jit(parameters)
        self._data = (x, targets)

    def begin(
        self, params: PyTree, before: Position | None = None, *, fixed: PyTree = ()
    ) -> Position:
        return Position(params, params, fixed)

    def forward(self, position: Position, steps: int) -> Position:
        params, stability = self._parameters(
            position.anchor, position.fixed, *self._data, jnp.asarray(steps)
        )
        spent = position.evaluations + 1
        return position._replace(
            inner=params, steps=steps, evaluations=spent, stability=float(stability)
        )

    def parameters(self, position: Position) -> PyTree:
        return position.inner

    def programs(self, params: PyTree, fixed: PyTree = ()) -> list:
        """What it computes, as jaxprs."""
        return [self._parameters.trace(params, fixed, *self._data, jnp.asarray(1)).jaxpr]


class Descent(NamedTuple):
    """Explicit steps on the way: how many, and where they have led."""

    steps: Int[Array, ""]
    coordinates: PyTree
    image: Float[Array, "N ..."]
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

    def __init__(self, task: Task, *, with_kernel: bool = False):
        super().__init__(task, with_kernel=with_kernel)
        self._there = jax.jit(lambda model: newton.within_rounding(self._objective(*model)))

    def start(self, objective: Objective, before) -> Minimum:
        zero, none = jnp.zeros_like(objective.model.outputs), jnp.asarray(0, jnp.int32)
        return Minimum(objective.model.origin, zero, jnp.ones((), zero.dtype), none, none)

    def go_on(self, objective: Objective, inner: Minimum, steps) -> Minimum:
        return newton.minimize(objective, tolerance=self.task.tolerance)

    def forward(self, position: Position, steps: int) -> Position:
        if position.steps == 0:
            position = super().forward(position, steps)
            if position.inner.certificate > 0 and not position.inner.image.any():  # it stays
                there = self._there(self._arguments(position.anchor, position.fixed))
                position = position._replace(failed=not bool(there))
        return position._replace(steps=steps)

    def described(self, position: Position) -> Position:
        return position._replace(evaluations=int(position.inner.evaluations))
