"""When to re-linearise, and when a linear problem counts as solved.

A schedule is a function (step, state) -> bool of traced values, asked before every step. True makes
the current parameters the new point of expansion theta_s. Training always expands at its first
parameters.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise.compiled import as_argument
from iterlin.linearise.devices import to_array
from iterlin.linearise.validation import (
    as_python,
    check_non_negative,
    check_non_negative_integer,
    check_positive,
    check_positive_integer,
    check_returns_bool,
    check_signature,
    explain_tracer_errors,
    function_name,
    is_traced,
)
from iterlin.training.state import TrainState, combine_state

# Larger than any step counter, so that it stands for K = infinity (erratum 11: a period beyond the
# end of a run and K = infinity are the same algorithm).
NEVER = 2**31 - 1


@dataclass(frozen=True)
class Solved:
    """When a linear problem counts as solved: a rule for `when_solved`.

    It is checked every `check_every` steps, counted by the engine "steps" from the start of the run
    and by the others from the last linearisation; by a flow after each of its own steps. Either
    criterion suffices. With cross-entropy and no penalty a linear model that separates the data has
    no minimiser, so that 'solve completely' means nothing without such a rule.

    Args:
        check_every: Steps between two checks.
        accuracy: The proxy classifies at least this fraction of the training examples; None leaves
            this criterion out.
        gradient: The norm of the gradient of the linear problem over all examples, penalty
            included, has fallen to this fraction of its value at theta_s; None leaves it out.
        slice_size: Examples evaluated at a time.

    Raises:
        ValueError: If check_every or slice_size is not a positive integer, accuracy is outside
            (0, 1], gradient is negative or not finite, or both are None.
    """

    check_every: int
    accuracy: float | None = 1.0
    gradient: float | None = None
    slice_size: int = 500

    def __post_init__(self):
        check_positive_integer("check_every", self.check_every, below=2**31)
        check_positive_integer("slice_size", self.slice_size)
        if self.accuracy is None and self.gradient is None:
            raise ValueError("the rule `Solved` needs an accuracy or a gradient")
        if self.accuracy is not None:
            check_positive("accuracy", self.accuracy)
            if not is_traced(self.accuracy) and self.accuracy > 1:
                raise ValueError(f"accuracy must lie in (0, 1], got {self.accuracy!r}")
        if self.gradient is not None:
            check_non_negative("gradient", self.gradient)
        for name in ("accuracy", "gradient"):  # numbers that can be compared and hashed
            object.__setattr__(self, name, as_python(getattr(self, name)))


@dataclass(frozen=True)
class Schedule:
    """When to re-linearise: a function (step, state) -> bool, with hints for the engines.

    The function is evaluated before every step. With the hints, engines can skip steps. Two
    schedules are equal if their fields are equal.

    Args:
        due: The function. It may look at the parameters, the anchor and the step of `state`.
        every_step: Whether due is always true.
        check_every: due looks at the parameters only every so many steps after a linearisation, and
            is true after max_period steps at the latest; None if that is not known.
        max_period: The longest period.
        solved: The rule by which `state.solved` is set; due is true once it is.

    Raises:
        ValueError: When it is called, also under a JAX trace, if due does not return one bool.
    """

    due: Callable[[Array, Any], Any]
    every_step: bool = False
    check_every: int | None = None
    max_period: int | Array = NEVER
    solved: Solved | None = None

    def __call__(self, step: Any, state: Any) -> Any:
        """Return one bool, in Python, NumPy or JAX: whether to re-linearise before this step.

        Args:
            step: Steps taken.
            state: The `TrainState` before the step.
        """
        name = f"the schedule {function_name(self.due)}"
        with explain_tracer_errors(name, "step", "jnp.isin(step, jnp.array([3, 7]))"):
            answer = self.due(step, state)
        check_returns_bool(name, answer, "step % 5 == 0")
        return answer

    def bind_fixed(self, fixed: PyTree) -> "Schedule":
        """Return the schedule as one of states of the trained parameters alone."""
        if isinstance(self.due, AtMultiples | _AtSteps | _OnceSolved):
            return self  # it does not look at parameters

        def due(step, state):
            return self(step, combine_state(state, fixed))

        return replace(self, due=due)


@dataclass(frozen=True)
class AtMultiples:
    """Whether a step is a multiple of the period: what `every` returns a `Schedule` of."""

    period: int | Array

    def __call__(self, step, state):
        return step % as_argument(self.period, jnp.int32) == 0


@dataclass(frozen=True)
class _AtSteps:
    steps: tuple[int, ...]

    def __call__(self, step, state):
        return jnp.isin(step, jnp.asarray(self.steps, jnp.int32))


@dataclass(frozen=True)
class _OnceSolved:
    max_period: int | Array

    def __call__(self, step, state):
        return state.solved | (step - state.anchored_at >= as_argument(self.max_period, jnp.int32))


@dataclass(frozen=True)
class _WherePredicateHolds:
    predicate: Callable[[TrainState], Any]
    check_every: int
    max_period: int | Array

    def __call__(self, step, state):
        def ask():
            name = f"the predicate {function_name(self.predicate)}"
            with explain_tracer_errors(name, "state", "jnp.where(...)"):
                answer = self.predicate(state)
            check_returns_bool(name, answer, "drift(state) > 0.3")
            return jnp.asarray(answer)

        since = step - state.anchored_at
        asked = (since > 0) & (since % as_argument(self.check_every, jnp.int32) == 0)
        return jax.lax.cond(asked, ask, lambda: jnp.asarray(False)) | (
            since >= as_argument(self.max_period, jnp.int32)
        )


def every(period: Any) -> Schedule:
    """Re-linearise when the step is a multiple of a fixed period K (Algorithm 3).

    Args:
        period: K: 1 is gradient descent, infinity is linearised training. It may be a traced
            integer.

    Raises:
        ValueError: Unless the period is a positive integer or infinity.

    >>> schedule = il.every(10)
    >>> [step for step in range(30) if schedule(step, None)]
    [0, 10, 20]
    """
    period = _as_period("period", period)
    every_step = not isinstance(period, Array) and period == 1
    return Schedule(AtMultiples(period), every_step, max_period=period)


def never() -> Schedule:
    """Keep the expansion at the initial parameters: linearised training, K = infinity.

    >>> schedule = il.never()
    >>> [step for step in range(30) if schedule(step, None)]
    [0]
    """
    return every(math.inf)


def when_solved(rule: Solved, *, max_period: int | float | Array = math.inf) -> Schedule:
    """Re-linearise when the linear problem is solved, after `max_period` steps at the latest.

    Args:
        rule: What counts as solved.
        max_period: The longest period: a positive integer or infinity.

    Raises:
        ValueError: If rule is not a `Solved`, or max_period is not a period.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> rule = il.schedules.Solved(check_every=5, accuracy=None, gradient=0.1)
    >>> settings = {"schedule": il.when_solved(rule, max_period=50), "num_steps": 100}
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, state.step)
    6 100
    """
    if not isinstance(rule, Solved):
        raise ValueError(f"rule must be a `schedules.Solved`, got {rule!r}")
    longest = _as_period("max_period", max_period)
    return Schedule(_OnceSolved(longest), max_period=longest, solved=rule)


def when(
    predicate: Callable[[TrainState], Any],
    *,
    check_every: int,
    max_period: int | float | Array = math.inf,
) -> Schedule:
    """Re-linearise where a predicate of the state holds, after `max_period` steps at the latest.

    The predicate costs nothing between two checks, except in `train_sweep`, whose runs together ask
    it at every step.

    Args:
        predicate: predicate(state) -> bool, for the `TrainState` before the step. It may look at
            ``state.params`` and ``state.anchor``: at how far the kernel has drifted
            (`kernel_drift`), or how far proxy and network have come apart (`linearization_error`).
        check_every: Steps between two checks, counted from the last linearisation.
        max_period: The longest period: a positive integer or infinity.

    Raises:
        ValueError: For a predicate that does not take a state, a check_every or max_period that is
            not a period; and when the predicate is asked, if it does not return one bool.

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
    check_signature("predicate", predicate, ("state",))
    check_positive_integer("check_every", check_every)
    longest = _as_period("max_period", max_period)
    often = check_every if is_traced(check_every) else min(check_every, NEVER)
    due = _WherePredicateHolds(predicate, often, longest)
    return Schedule(due, check_every=check_every, max_period=longest)


def as_schedule(schedule: Any) -> Schedule:
    """Convert a period, a list of steps or a function to a `Schedule`.

    Args:
        schedule: A period K, which becomes `every(K)`; the steps at which to re-linearise, as a
            list, tuple or array; a function (step, state) -> bool; or a `Schedule`.

    Raises:
        ValueError: For anything else, such as a function of other arguments.

    >>> schedule = il.schedules.as_schedule([3, 7])
    >>> [step for step in range(10) if schedule(step, None)]
    [3, 7]
    """
    if isinstance(schedule, Schedule):
        return schedule
    if callable(schedule):
        makers = "; il.every(10), il.never(), il.when(...) and il.when_solved(...) return schedules"
        check_signature("schedule", schedule, ("step", "state"), remedy=makers)
        return Schedule(schedule)
    if hasattr(schedule, "schedule"):  # `for_time` gives both
        raise ValueError("schedule must be the .schedule of for_time's result, not the result")
    if isinstance(schedule, list | tuple) or np.ndim(schedule) == 1:
        for step in schedule:
            check_non_negative_integer("a step of the schedule", step, below=NEVER)
        return Schedule(_AtSteps(tuple(int(step) for step in schedule)))
    try:
        return every(schedule)
    except ValueError:
        raise ValueError(
            "schedule must be a period, a list of steps or a function (step, state) -> bool, got "
            f"{schedule!r}"
        ) from None


def reads_params(schedule: Schedule, state: TrainState) -> bool:
    """Return whether the answer of a schedule at a state depends on the parameters."""

    def answer(params):
        return schedule(state.step, state._replace(params=params))

    # Under vmap over two copies of the parameters, an answer that depends on them has a batch axis,
    # which out_axes=None rejects.
    def over_copies(params):
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, *leaf.shape)), params)
        return jax.vmap(answer, out_axes=None, axis_size=2)(copies)

    try:
        jax.eval_shape(over_copies, state.params)
    except ValueError:
        return True
    return False


def _as_period(name: str, period: Any) -> int | Array:
    """Return a period as an int, with `NEVER` for infinity, or as the traced integer that it is."""
    number = as_python(period)
    if isinstance(number, float):
        period = int(number) if number.is_integer() else number
    check_positive_integer(name, period, infinity=True)
    if is_traced(period):
        return period
    if isinstance(period, Array):
        period = int(period)
    return int(min(period, NEVER))


def periods_array(periods: Any) -> Array:
    """Return periods as an int32 array (K,) that `every` accepts under vmap; infinity as `NEVER`.

    Raises ValueError unless they are positive integers or infinity, and one at least.
    """
    several = isinstance(as_python(periods), Iterable)
    found = [_as_period("period", period) for period in periods] if several else []
    if not found:
        raise ValueError(f"periods must be a sequence of at least one period, got {periods!r}")
    return to_array(found, jnp.int32)
