"""Ways to train one linearisation for K full-batch steps other than one by one.

    kept_steps              any loss: the steps themselves, one by one
    closed_form             squared loss: K steps from one decomposition of J
    function_space          any loss: K steps of the N O outputs with the kernel, then parameters
    function_space_flow     any smooth convex loss: gradient flow for a time eta K, with the kernel
    flow                    the same by Jacobian products alone, for any N
    function_space_minimum  a penalised convex loss: its minimum, K = infinity, with the kernel
    minimum                 the same by Jacobian products alone

The first three give the steps of Algorithm 3, up to rounding. A flow is the limit of the steps as
eta goes to 0. At a given eta, the two differ by a term of first order in eta lambda_max, which the
history reports as `stability`.

To add an engine, write a class with the methods of `Engine` and list it in `choice.ENGINES`. An
engine that uses products with J J^T can extend `kernel_product_engine.KernelProductEngine`.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact import flow, newton
from iterlin.exact.flow import Flow, Objective
from iterlin.exact.kernel_product_engine import KernelProductEngine
from iterlin.exact.newton import Minimum
from iterlin.exact.task import Position, Task, quadratic
from iterlin.kernels.gradient_flow import eigenmodes
from iterlin.linearise.compiled import SharedJit, as_argument
from iterlin.linearise.devices import to_array
from iterlin.linearise.spectral_filters import descent_filter

# Steps in one call of `forward`: integration steps of a flow, gradient steps of descent. Between
# two calls the caller may write a checkpoint.
FLOW_BURST, DESCENT_BURST = 200, 5000


@runtime_checkable
class Engine(Protocol):
    """The methods that `trainer.ExactTrainer` calls to train one linearisation after the other.

    An engine is made from a `Task`. The trainer calls `begin` at each linearisation, then `forward`
    until the position has reached the wanted step, is solved, or has failed, then `parameters`.
    """

    def begin(self, params: PyTree, before: Position | None = None) -> Position:
        """Linearise at params and return the position at step 0.

        before: the last position of the previous linearisation, from which an engine may take a
        first guess; None for the first linearisation.
        """
        ...

    def forward(self, position: Position, steps: int) -> Position:
        """Train towards `steps` gradient steps since theta_s and return the new position.

        One call may cover only a part of the way. It takes at most a few seconds if it can.
        """
        ...

    def parameters(self, position: Position) -> PyTree:
        """Return the parameters at the position."""
        ...

    def start_shapes(self, params: PyTree) -> Any:
        """Return `inner` of the first position, with shapes in the place of arrays."""
        ...

    def programs(self, params: PyTree) -> list[Any]:
        """Return the jaxprs that the engine runs, which identify it in a checkpoint."""
        ...


class ClosedForm:
    """Take K steps on the squared loss in closed form, along each singular direction of J.

    The penalty is included. The decomposition of J is kept until the next linearisation. Raises
    ValueError if the loss is not half a squared error, or a multiple of it.
    """

    def __init__(self, task: Task):
        x, y = task.data
        self.task = task
        found = quadratic(task.loss, y)
        if found is None:
            raise ValueError("the closed form needs half a squared error, or a multiple of it")
        factor, targets = found

        def decompose(anchor):
            return eigenmodes(task.f, anchor, x, targets, memory_limit=task.memory_limit)

        def move(modes, steps):
            rates = factor * modes.spectrum + 2 * task.penalty
            filtered = factor * descent_filter(rates, task.step_size, steps)
            return modes.displaced(filtered), task.step_size * jnp.max(rates)

        self._decompose, self._move = SharedJit(decompose), SharedJit(move)
        self._modes: tuple[PyTree, PyTree] = (None, None)  # of the latest anchor

    def begin(self, params: PyTree, before: Position | None = None) -> Position:
        return Position(params, params)

    def forward(self, position: Position, steps: int) -> Position:
        anchor = position.anchor
        if self._modes[0] is not anchor:
            self._modes = (None, None)  # Memory may not hold two decompositions.
            self._modes = (anchor, self._decompose(anchor))
        params, stability = self._move(self._modes[1], to_array(steps))
        return position._replace(
            inner=params, steps=steps, evaluations=1, stability=float(stability)
        )

    def parameters(self, position: Position) -> PyTree:
        return position.inner

    def start_shapes(self, params: PyTree) -> PyTree:
        return params

    def programs(self, params: PyTree) -> list:
        modes = jax.eval_shape(self._decompose, params)
        return [self._decompose.trace(params), self._move.trace(modes, to_array(1))]


class Descent(NamedTuple):
    """State of explicit gradient descent.

    Attributes:
        steps: Gradient steps taken since theta_s.
        coordinates: Coordinates of the displacement (`linear_model.LinearModel`).
        image: Change of the outputs, (N, ...).
        solved: Whether the task's rule is met.
    """

    steps: Int[Array, ""]
    coordinates: PyTree
    image: Float[Array, "N ..."]
    solved: Bool[Array, ""]


class Steps(KernelProductEngine):
    """Take every gradient step, with the kernel on the outputs or with stored activations."""

    def start(self, objective: Objective, before: Descent | None) -> Descent:
        zero, steps = jnp.zeros_like(objective.model.outputs), jnp.asarray(0, jnp.int32)
        return Descent(steps, objective.model.origin, zero, jnp.asarray(False))

    def advance(self, objective: Objective, inner: Descent, steps: Array) -> Descent:
        rule, is_solved = self.task.solved, self._solved_test(objective)

        def step(before: Descent) -> Descent:
            point = before.coordinates, before.image
            slope = objective.slope(*point)
            coordinates, image = point = jax.tree.map(
                lambda a, b: a - self.task.step_size * b, point, slope
            )
            taken, solved = before.steps + 1, before.solved
            if rule is not None:
                solved = jax.lax.cond(
                    taken % as_argument(rule.check_every, jnp.int32) == 0,
                    lambda: is_solved(point, objective.slope(*point)),
                    lambda: before.solved,
                )
            return Descent(taken, coordinates, image, solved)

        until = jnp.minimum(steps, inner.steps + DESCENT_BURST)
        return jax.lax.while_loop(lambda d: (d.steps < until) & ~d.solved, step, inner)

    def with_progress(self, position: Position) -> Position:
        steps, solved = int(position.inner.steps), bool(position.inner.solved)
        return position._replace(steps=steps, evaluations=steps, solved=solved)


class GradientFlow(KernelProductEngine):
    """Follow gradient flow for a time eta K."""

    def start(self, objective: Objective, before: Flow | None) -> Flow:
        return flow.begin(objective, before)

    def advance(self, objective: Objective, inner: Flow, steps: Array) -> Flow:
        is_solved = self._solved_test(objective)
        return flow.advance(
            objective,
            inner,
            steps.astype(inner.image.dtype) * self.task.step_size,
            tolerance=self.task.tolerance,
            max_steps=FLOW_BURST,
            solved=lambda f: is_solved((f.coordinates, f.image), (f.slope, f.slope_image)),
        )

    def forward(self, position: Position, steps: int) -> Position:
        before = position.inner.time
        position = super().forward(position, steps)
        flow = position.inner
        # Compare times: for very many steps, single precision cannot tell two counts apart.
        wanted = np.asarray(steps, before.dtype) * np.asarray(self.task.step_size, before.dtype)
        if np.asarray(flow.time) >= wanted:
            return position._replace(steps=steps)
        return position._replace(failed=not flow.solved and bool(flow.time == before))

    def with_progress(self, position: Position) -> Position:
        flow, size = position.inner, float(self.task.step_size)
        return position._replace(
            steps=round(float(flow.time) / size),
            evaluations=int(flow.evaluations),
            stability=size * float(flow.curvature),
            solved=bool(flow.solved),
        )


class ToMinimum(KernelProductEngine):
    """Find the minimum of the linearised objective, with a positive penalty, for any period."""

    def __init__(self, task: Task, *, with_kernel: bool = False):
        super().__init__(task, with_kernel=with_kernel)
        self._at_minimum = SharedJit(lambda model: newton.within_rounding(self._objective(*model)))

    def start(self, objective: Objective, before: Minimum | None) -> Minimum:
        zero, none = jnp.zeros_like(objective.model.outputs), jnp.asarray(0, jnp.int32)
        return Minimum(objective.model.origin, zero, jnp.ones((), zero.dtype), none, none)

    def advance(self, objective: Objective, inner: Minimum, steps: Array) -> Minimum:
        return newton.minimize(objective, tolerance=self.task.tolerance)

    def forward(self, position: Position, steps: int) -> Position:
        if position.steps == 0:  # otherwise an earlier call has found the minimum
            position = super().forward(position, steps)
            # Without a displacement, either theta_s is the minimum or Newton's method has failed.
            if position.inner.certificate > 0 and not position.inner.image.any():
                at_minimum = bool(self._at_minimum(self._model(position.anchor)))
                position = position._replace(failed=not at_minimum)
        return position._replace(steps=steps)

    def with_progress(self, position: Position) -> Position:
        return position._replace(evaluations=int(position.inner.evaluations))
