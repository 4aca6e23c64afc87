"""Which engine a run takes: what each would cost, and which of them apply at all."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.exact import linear_model
from iterlin.exact.engines import ClosedForm, GradientFlow, Steps, ToMinimum
from iterlin.exact.flow import Objective, begin
from iterlin.exact.task import Task, kernel_workspace, quadratic, slice_size
from iterlin.runtime import costs

ENGINES: dict[str, Callable[[Task], object] | None] = {
    "auto": None,
    "steps": None,  # training.train itself
    "kept_steps": Steps,
    "closed_form": ClosedForm,
    "function_space": lambda task: Steps(task, with_kernel=True),
    "function_space_flow": lambda task: GradientFlow(task, with_kernel=True),
    "flow": GradientFlow,
    "minimum": ToMinimum,
}
# A flow may stand for steps, unasked, while eta lambda_max at theta_s is below this.
SMALL_STEP = 0.1
# A product with a matrix in memory waits for it: about as long as this many operations each.
MEMORY_BOUND = 20


def estimate(task: Task, params: PyTree, *, period: int, num_steps: int) -> dict[str, float]:
    """Operations that each engine that applies would take, for periods of that many steps.

    The fields of `task.Task` say what is trained. Counted are matrix products (`costs`), those
    with a kernel at MEMORY_BOUND of their number, as they wait for memory.
    """
    f, (x, y) = task.f, task.data
    period = min(period, num_steps)
    linearizations = math.ceil(num_steps / period)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    outputs = jax.eval_shape(f, params, x)
    primal = costs.operations(f, params, x)

    def product(p, u):
        return linear_model.from_products(f, p, x).push(u)

    products = costs.operations(product, params, outputs) - primal
    kernel = (
        _kernel_operations(task, params) if _kernel_bytes(outputs) <= task.memory_limit else None
    )
    with_kernel = MEMORY_BOUND * 2 * outputs.size**2
    found = {"steps": num_steps * (primal + products)}
    if task.solved is None and quadratic(task.loss, y) is not None:
        smaller, larger = sorted((outputs.size, numbers))
        found["closed_form"] = linearizations * 20 * smaller**2 * larger
    if kernel is not None:
        found["function_space"] = linearizations * kernel + num_steps * with_kernel

    def curvature_at(p):
        model = linear_model.from_products(
            f, p, x, slice_size=slice_size(f, p, x, task.memory_limit)
        )
        return begin(Objective(model, task.loss, y, task.penalty)).curvature

    curvature = float(jax.jit(curvature_at)(params))
    if task.step_size * curvature < SMALL_STEP:
        rounds = _flow_evaluations(period * task.step_size * curvature, task.tolerance)
        found["flow"] = linearizations * rounds * (primal + products)
        if kernel is not None:
            found["function_space_flow"] = linearizations * (kernel + rounds * with_kernel)
    return found


def _kernel_operations(task: Task, params: PyTree) -> int | None:
    """Of J J^T as a matrix; None if even its smallest parts do not fit into the memory limit."""
    limit = kernel_workspace(task)
    try:
        return costs.operations(
            lambda p: linear_model.kernel_of(task.f, p, task.data[0], memory_limit=limit), params
        )
    except ValueError:
        return None


def _flow_evaluations(reach: float, tolerance: float) -> float:
    """Products that a flow of time * lambda_max = reach takes, as seen on small networks."""
    return 8 + 35 * reach ** (1 / 3) * (1e-3 / tolerance) ** 0.25


def _kernel_bytes(outputs) -> int:
    return outputs.size**2 * outputs.dtype.itemsize


def half_precision(task: Task, params: PyTree) -> str | None:
    """The name of a type of less than 32 bits among the parameters and outputs, if there is one."""
    for leaf in [jax.eval_shape(task.f, params, task.data[0]), *jax.tree.leaves(params)]:
        if jnp.finfo(leaf.dtype).bits < 32:
            return str(leaf.dtype)
    return None


def check_engine(engine: str, task: Task, params: PyTree) -> None:
    """Raises ValueError for an engine that does not apply to the task, saying which does."""
    outputs = jax.eval_shape(task.f, params, task.data[0])
    if engine != "steps" and (dtype := half_precision(task, params)):
        raise ValueError(
            f"engine '{engine}' needs float32 or float64, and there is {dtype}: an error estimate "
            "drowns in its rounding; compute in it inside f, or take 'steps'"
        )
    if engine == "closed_form":
        if quadratic(task.loss, task.data[1]) is None:
            raise ValueError(
                "engine 'closed_form' is for half a squared error, or a multiple of it: "
                "take 'flow' or 'function_space' for another loss"
            )
        if task.solved is not None:
            raise ValueError("engine 'closed_form' does not look for when a problem is solved")
    if engine == "minimum" and task.penalty <= 0:
        raise ValueError(
            "engine 'minimum' needs a positive penalty: without one the cross-entropy of separable "
            "data has no minimum; take 'flow' with when_solved(...) and a rule `solved`"
        )
    if engine.startswith("function_space") and _kernel_bytes(outputs) > task.memory_limit:
        raise ValueError(
            f"the kernel of {outputs.size} outputs takes {_kernel_bytes(outputs)} bytes, more than "
            f"memory_limit={task.memory_limit}: take engine 'flow', or fewer examples"
        )


def default_memory() -> int:
    """Bytes for kernels or kept activations: 2 GiB on a CPU, 60 % of a GPU's."""
    return costs.device_memory(2**31, 0.6)
