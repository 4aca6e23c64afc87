"""Checks whether an engine applies to a run. Messages name an engine that does."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.exact.task import Task, quadratic, slice_size
from iterlin.kernels.ntk import plan_cache
from iterlin.linearise.linearization import require_independent
from iterlin.linearise.validation import check_finite
from iterlin.training.schedules import reads_params
from iterlin.training.state import TrainState
from iterlin.training.step import Step


def is_quadratic(task: Task, outputs) -> bool:
    """Return whether the loss is half a squared error of these outputs, or a multiple of it."""
    y = task.data[1]
    return getattr(y, "shape", None) == outputs.shape and quadratic(task.loss, y) is not None


def unfit_for_engines(step: Step, params: PyTree = None) -> str | None:
    """Return why the settings of a run require engine 'steps'; None if they do not."""
    algorithm = step.algorithm
    for name in ("batch_size", "augment", "mesh", "normalization"):
        if getattr(algorithm if name == "normalization" else step, name) is not None:
            return f"engines but 'steps' train on the full batch as it is: no {name}"
    if algorithm.keyed:
        return (
            "engines but 'steps' have no key for a keyed f: give f without its noise, or take "
            "engine 'steps'"
        )
    if callable(getattr(algorithm.optimizer, "update", None)):
        return (
            "engines but 'steps' are for gradient descent: give a step size, or take 'steps'; for "
            "periods of a fixed time (`timed.for_time`), with the schedule every(time / step size)"
        )
    if isinstance(params, TrainState):
        return (
            "engines but 'steps' start from parameters, not from the state of a run: give its "
            "state.params, or a checkpoint from which to continue"
        )
    return None


def needs_steps(step: Step, task: Task, state: TrainState) -> str | None:
    """Return why the functions or types of a run require engine 'steps'; None if they do not.

    step and state: of the trained parameters alone.
    """
    if step.algorithm.regularizer is not None:
        return "a regularizer depends on the parameters, not on the outputs alone"
    if step.schedule.check_every is None and reads_params(step.schedule, state):
        return (
            "the schedule looks at the parameters at every step: give it as "
            "schedules.when(..., check_every=...)"
        )
    outputs = jax.eval_shape(task.f, state.params, task.data[0])
    types = {jnp.result_type(leaf) for leaf in [outputs, *jax.tree.leaves(state.params)]}
    if len(types) == 1 and all(jnp.finfo(dtype).bits >= 32 for dtype in types):
        return None
    listed = " and ".join(sorted(map(str, types)))
    return (
        "engines but 'steps' estimate errors, for which parameters and outputs must have one type, "
        f"float32 or float64, but there are {listed}: convert inside f"
    )


def check_engine(engine: str, task: Task, params: PyTree, *, stops: bool = False) -> None:
    """Raise ValueError, which names an engine that does, if the engine does not apply to the task.

    stops: whether the schedule reads the parameters, so that the engine must stop in between.
    """
    x, limit = task.data[0], task.memory_limit
    outputs = jax.eval_shape(task.f, params, x)
    sliced = slice_size(task.f, params, x, limit)
    if engine == "closed_form" or sliced:  # J and slices are of single examples
        try:
            require_independent(task.f, params, x)
        except ValueError as error:
            flow = "'flow' with a larger memory_limit" if sliced else "'flow'"
            raise ValueError(f"engine '{engine}': {error}. Or take 'steps', or {flow}") from error
    if engine == "closed_form":
        check_finite("targets", task.data[1])
        if not is_quadratic(task, outputs):
            raise ValueError(
                "engine 'closed_form' is for half a squared error, or a multiple of it, of "
                "floating point targets: take 'flow' or 'function_space' for others"
            )
        if task.solved is not None:
            raise ValueError(
                "engine 'closed_form' does not test when a problem is solved: take 'flow' or "
                "'function_space'"
            )
    if engine.endswith("minimum"):
        if task.penalty <= 0:
            raise ValueError(
                f"engine '{engine}' needs a positive penalty: without one the cross-entropy of "
                "separable data has no minimum; take 'flow' with when_solved(Solved(...))"
            )
        if task.solved is not None:
            raise ValueError(
                f"engine '{engine}' solves each problem in full: give a period, or take 'flow'"
            )
        if stops:
            raise ValueError(
                f"engine '{engine}' takes no steps at which the schedule could look at the "
                "parameters: take 'flow', or a schedule that does not look"
            )
    if engine.startswith("function_space"):
        plan = plan_cache(task.f, params, x, limit)
        if plan.form is None:
            taken = min(plan.matrix, plan.factors)
            raise ValueError(
                f"the kernel of {outputs.size} outputs takes {taken} bytes, more than memory_limit="
                f"{limit}: take engine 'flow', or fewer examples"
            )
