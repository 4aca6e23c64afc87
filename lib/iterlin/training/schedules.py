"""When to re-linearise, and when a linear problem is solved.

A schedule is a function (step, state) -> bool of traced values. It is asked before every step; true
means 'take the current parameters as the new point of expansion'. Training expands at its first
parameters whatever the schedule says. `state` is the `TrainState`, so a user's schedule may look at
the parameters, the anchor or the step; `when` asks a predicate now and then. `Schedule` wraps such
a function, checks its answers, and says what is known of it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.linearization import Network
from iterlin.linearise.slices import in_slices
from iterlin.linearise.validation import (
    accepts,
    as_python,
    is_traced,
    non_negative,
    one_bool,
    positive,
    positive_integer,
    shown,
    without_values,
)
from iterlin.training.losses import Loss, loss_over_slices
from iterlin.training.state import TrainState, whole

# Larger than any step counter: a period that never comes round (erratum 11: K beyond the end of a
# run and K = infinity are the same algorithm).
NEVER = 2**31 - 1


@dataclass(frozen=True)
class Schedule:
    """When to re-linearise: a function (step, state) -> bool, and what is known of it.

    due(step, state) is asked before every step. every_step: due is always true. check_every: due
    looks at the parameters only when a multiple of so many steps has passed since the last
    linearisation, and is true after max_period steps at the latest; None: nothing is known.

    A call raises ValueError, also where JAX traces it, if due returns anything but one bool.
    """

    due: Callable[[Array, Any], Any]
    every_step: bool = False
    check_every: int | None = None
    max_period: int | Array = NEVER

    def __call__(self, step, state):
        name = f"the schedule {shown(self.due)}"
        with without_values(name, "step", "jnp.isin(step, jnp.array([3, 7]))"):
            answer = self.due(step, state)
        one_bool(name, answer, "step % 5 == 0")
        return answer


def every(period: Any) -> Schedule:
    """Fixed period K (Algorithm 3): re-linearise when the step is a multiple of `period`.

    period 1 is gradient descent, infinity is linearised training. It may be a traced integer.
    Raises ValueError unless it is a positive integer or infinity.

    >>> schedule = il.every(10)
    >>> [step for step in range(30) if schedule(step, None)]
    [0, 10, 20]
    """
    period = _whole("period", period)

    def due(step, state):
        return step % period == 0

    return Schedule(due, not isinstance(period, Array) and period == 1, max_period=period)


def never() -> Schedule:
    """Linearised training: the expansion at the initial parameters is kept (K = infinity).

    >>> schedule = il.never()
    >>> [step for step in range(30) if schedule(step, None)]
    [0]
    """
    return every(math.inf)


def when_solved(max_period: int | float | Array) -> Schedule:
    """Re-linearise when the linear problem is solved, after `max_period` steps at the latest.

    What counts as solved is the rule `Solved` that training is given; without one this
    is `every(max_period)`.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> rule = il.schedules.Solved(check_every=5, accuracy=None, gradient=0.1)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5, solved=rule)
    >>> settings = {"schedule": il.when_solved(50), "num_steps": 100}
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, state.step)
    6 100
    """
    max_period = _whole("max_period", max_period)

    def due(step, state):
        return state.solved | (step - state.anchored_at >= max_period)

    return Schedule(due, max_period=max_period)


def when(
    predicate: Callable[[Any], Array],
    *,
    check_every: int,
    max_period: int | float | Array = math.inf,
) -> Schedule:
    """Re-linearise where predicate(state) -> bool holds, which is asked every `check_every` steps
    after a linearisation, and after `max_period` steps at the latest.

    The predicate may look at ``state.params`` and ``state.anchor``: at how far the kernel has
    drifted since, say (`ntk.kernel_drift`), or how far proxy and network have come apart. It costs
    nothing between two checks.

    Raises ValueError for a predicate that cannot be called with a state, a check_every that is not
    a positive integer, a max_period that is not one or infinity; and, when it is asked, for a
    predicate that returns anything but one bool.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.1)
    >>> far = lambda state: jnp.linalg.norm(state.params - state.anchor) > 0.3
    >>> settings = {"schedule": il.when(far, check_every=5), "num_steps": 100}
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, state.anchored_at)
    1 10
    """
    if not callable(predicate):
        raise ValueError(f"predicate must be a function of the state, got {predicate!r}")
    accepts("predicate", predicate, ("state",))
    positive_integer("check_every", check_every)
    max_period = _whole("max_period", max_period)
    name = f"the predicate {shown(predicate)}"

    def due(step, state):
        def ask():
            with without_values(name, "state", "jnp.where(...)"):
                answer = predicate(state)
            one_bool(name, answer, "drift(state) > 0.3")
            return jnp.asarray(answer)

        since = step - state.anchored_at
        asked = (since > 0) & (since % check_every == 0)
        return jax.lax.cond(asked, ask, lambda: jnp.asarray(False)) | (since >= max_period)

    return Schedule(due, check_every=check_every, max_period=max_period)


def as_schedule(schedule: Any) -> Schedule:
    """A period K as `every(K)`, a function (step, state) as a schedule. Raise ValueError for
    anything else, such as a function of other arguments."""
    if isinstance(schedule, Schedule):
        return schedule
    if callable(schedule):
        makers = "; il.every(10), il.never(), il.when(...) and il.when_solved(50) return schedules"
        accepts("schedule", schedule, ("step", "state"), remedy=makers)
        return Schedule(schedule)
    try:
        return every(schedule)
    except ValueError:
        raise ValueError(
            f"schedule must be a period or a function (step, state) -> bool, got {schedule!r}"
        ) from None


def of_whole(schedule: Schedule, fixed: PyTree) -> Schedule:
    """The schedule of states that lack the fixed parameters, of which it is told."""
    if not jax.tree.leaves(fixed):
        return schedule

    def due(step, state):
        return schedule(step, whole(state, fixed))

    return replace(schedule, due=due)


def check_answer(schedule: Schedule, state: TrainState) -> None:
    """Raise ValueError unless the schedule's answer at this state is one bool; nothing runs."""
    jax.eval_shape(schedule, state.step, state)


def looks_at(name: str, schedule: Schedule, state: TrainState) -> bool:
    """Whether a schedule's answer depends on that field of the state."""

    def asked(value):
        return schedule(state.step, state._replace(**{name: value}))

    # Over two copies of the field, an answer that depends on it has an axis, which None refuses.
    def over_copies(value):
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, *leaf.shape)), value)
        return jax.vmap(asked, out_axes=None, axis_size=2)(copies)

    try:
        jax.eval_shape(over_copies, getattr(state, name))
    except ValueError:
        return True
    return False


def _whole(name, period):
    """A period as an int, `NEVER` for infinity, or traced; 1e3 is 1000."""
    number = as_python(period)
    if isinstance(number, float):
        period = int(number) if number.is_integer() else number
    positive_integer(name, period, infinity=True)
    return period if isinstance(period, Array) else int(min(period, NEVER))


def periods_array(periods) -> Array:
    """Periods as an int32 array that `every` accepts under vmap, infinity as `NEVER`.

    Raises ValueError for what is no sequence of positive integers or infinity, or an empty one.
    """
    several = isinstance(as_python(periods), Iterable)
    found = [_whole("period", period) for period in periods] if several else []
    if not found:
        raise ValueError(f"periods must be a sequence of at least one period, got {periods!r}")
    return jnp.asarray(found, dtype=jnp.int32)


@dataclass(frozen=True)
class Solved:
    """When a linear problem counts as solved, looked at every `check_every` steps.

    accuracy: the proxy classifies at least this fraction of the training examples; None leaves it
    out. gradient: the norm of the proxy objective's gradient over all examples, penalty included,
    has fallen to this fraction of what it was at theta_s; None leaves it out. Either suffices. With
    cross-entropy and no penalty a linear model that separates the data has no minimiser, so that
    'solve completely' means nothing without such a rule. slice_size: examples looked at together.

    Raises ValueError when it is made: for a check_every or slice_size that is not a positive
    integer, an accuracy outside (0, 1], a gradient that is negative or not finite, or neither.
    """

    check_every: int
    accuracy: float | None = 1.0
    gradient: float | None = None
    slice_size: int = 500

    def __post_init__(self):
        positive_integer("check_every", self.check_every)
        positive_integer("slice_size", self.slice_size)
        if self.accuracy is None and self.gradient is None:
            raise ValueError("the rule `Solved` needs an accuracy or a gradient")
        if self.accuracy is not None:
            positive("accuracy", self.accuracy)
            if not is_traced(self.accuracy) and self.accuracy > 1:
                raise ValueError(f"accuracy must lie in (0, 1], got {self.accuracy!r}")
        if self.gradient is not None:
            non_negative("gradient", self.gradient)

    def met(
        self,
        proxy: Network,
        loss: Loss,
        whole_gradient: Callable[[PyTree, PyTree], PyTree],
        params: PyTree,
        anchor: PyTree,
        data: tuple[Array, Array],
    ) -> Bool[Array, ""]:
        """Whether params solve the problem of the proxy at the anchor, on all of data = (x, y).

        whole_gradient(gradient, theta): that of the proxy's loss with the objective's other terms.
        """
        x, y = data
        solved = jnp.asarray(False)
        if self.accuracy is not None:
            sliced = in_slices(proxy, self.slice_size)
            solved |= jnp.mean(jnp.argmax(sliced(params, x), -1) == y) >= self.accuracy
        if self.gradient is not None:

            def norm(theta):
                def gradient_of(loss, x, y):
                    return jax.grad(lambda p: loss(proxy(p, x), y))(theta)

                gradient = loss_over_slices(gradient_of, loss, self.slice_size, x, y)
                return optax.tree.norm(whole_gradient(gradient, theta))

            solved |= norm(params) <= self.gradient * norm(anchor)
        return solved
