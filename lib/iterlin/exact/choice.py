"""The engines by name, and the engine that 'auto' takes."""

from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.exact.checks import is_quadratic
from iterlin.exact.engines import ClosedForm, Engine, GradientFlow, Steps, ToMinimum
from iterlin.exact.task import Task, slice_size
from iterlin.kernels.ntk import plan_cache
from iterlin.linearise.linearization import require_independent

# The values of the argument `engine` of `train`: "steps" takes every step, "auto" chooses.
EngineName = Literal[
    "auto",
    "steps",
    "kept_steps",
    "closed_form",
    "function_space",
    "function_space_flow",
    "function_space_minimum",
    "flow",
    "minimum",
]
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)
ENGINES: dict[str, Callable[[Task], Engine]] = {
    "kept_steps": Steps,
    "closed_form": ClosedForm,
    "function_space": lambda task: Steps(task, with_kernel=True),
    "function_space_flow": lambda task: GradientFlow(task, with_kernel=True),
    "flow": GradientFlow,
    "function_space_minimum": lambda task: ToMinimum(task, with_kernel=True),
    "minimum": ToMinimum,
}
# 'auto' takes steps for shorter periods.
LONG_PERIOD = 1000
# 'auto' takes the closed form only for at most this many outputs N O.
FEW_OUTPUTS = 2000
# 'auto' takes a flow only if eta lambda_max at theta_s is smaller.
SMALL_STEP = 0.1


def choose(task: Task, params: PyTree, period: int) -> tuple[str, str]:
    """Return the engine that 'auto' takes for a first period of so many steps, and why."""
    if period < LONG_PERIOD:
        return "steps", f"periods of {period} steps are shorter than {LONG_PERIOD}"
    x, limit = task.data[0], task.memory_limit
    outputs, independent = jax.eval_shape(task.f, params, x), _is_independent(task, params)
    if not independent and slice_size(task.f, params, x, limit):
        return "steps", "f couples its examples, which do not fit into memory_limit together"
    numbers = outputs.size * sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    fits = numbers * outputs.dtype.itemsize <= limit
    few = outputs.size <= FEW_OUTPUTS and fits and independent
    if few and task.solved is None and is_quadratic(task, outputs):
        return "closed_form", f"a squared error of {outputs.size} outputs"
    stability = GradientFlow(task).begin(params).stability
    if not stability < SMALL_STEP:
        return "steps", f"step_size lambda_max = {stability:.2g} is not below {SMALL_STEP}"
    small = f"periods of {period} steps, step_size lambda_max = {stability:.2g}"
    if independent and plan_cache(task.f, params, x, limit).form:
        return "function_space_flow", f"{small}, the kernel fits into memory_limit"
    return "flow", f"{small}, no kernel fits into memory_limit"


def _is_independent(task: Task, params: PyTree) -> bool:
    """Return whether f treats examples independently, as kernels and the closed form need it."""
    try:
        require_independent(task.f, params, task.data[0])
    except ValueError:
        return False
    return True
