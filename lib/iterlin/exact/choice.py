"""Which engine a run takes: what each would cost, and which of them apply at all."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.algorithm import Algorithm
from iterlin.exact import linear_model
from iterlin.exact.calendar import ends_when_solved, looks_at
from iterlin.exact.engines import ClosedForm, GradientFlow, Steps, ToMinimum
from iterlin.exact.flow import Objective, begin
from iterlin.exact.task import Task, quadratic, slice_size
from iterlin.kernels.kept import Sizes
from iterlin.linearization import output_shape
from iterlin.losses import check_labels
from iterlin.ntk import kept_ntk, kept_sizes
from iterlin.parameters import bound, join, split
from iterlin.runtime import costs
from iterlin.schedules import Schedule
from iterlin.state import TrainState

ENGINES: dict[str, Callable[[Task], object] | None] = {
    "auto": None,
    "steps": None,  # training.train itself
    "kept_steps": Steps,
    "closed_form": ClosedForm,
    "function_space": lambda task: Steps(task, with_kernel=True),
    "function_space_flow": lambda task: GradientFlow(task, with_kernel=True),
    "flow": GradientFlow,
    "function_space_minimum": lambda task: ToMinimum(task, with_kernel=True),
    "minimum": ToMinimum,
}
# A flow may stand for steps, unasked, while eta lambda_max at theta_s is below this.
SMALL_STEP = 0.1
# A product with what lies in memory waits for it: about as long as so many times its operations.
MEMORY_BOUND = 20
# Products that a stop on its way costs a flow at least: two stages, and those for lambda_max.
STOP = 4


def estimate(
    task: Task, params: PyTree, *, period: int, num_steps: int, check_every: int | None = None
) -> dict[str, float]:
    """Operations that each engine that applies would take, for periods of that many steps; with a
    stop every check_every of them, where the schedule looks at the parameters.

    The fields of `task.Task` say what is trained. Counted are matrix products (`costs`), those
    with a kernel at MEMORY_BOUND of their number, as they wait for memory.
    """
    params, fixed = split(params, task.trainable)
    f, (x, y) = bound(task.f, fixed), task.data
    period = min(period, num_steps)
    linearizations = math.ceil(num_steps / period)
    stops = 1 if check_every is None else math.ceil(period / check_every)
    numbers = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    outputs = jax.eval_shape(f, params, x)
    primal = costs.operations(f, params, x)

    def product(p, u):
        return linear_model.from_products(f, p, x).push(u)

    products = costs.operations(product, params, outputs) - primal
    kernel, with_kernel = _kernel_operations(task, params, fixed) or (None, 0)
    found = {"steps": num_steps * (primal + products)}
    if task.solved is None and _is_quadratic(task, outputs):
        smaller, larger = sorted((outputs.size, numbers))
        found["closed_form"] = linearizations * stops * 20 * smaller**2 * larger
    if kernel is not None:
        found["function_space"] = linearizations * kernel + num_steps * with_kernel

    @jax.jit
    def curvature_at(p, fixed, x, y):
        f = bound(task.f, fixed)
        model = linear_model.from_products(
            f, p, x, slice_size=slice_size(f, p, x, task.memory_limit)
        )
        return begin(Objective(model, task.loss, y, task.penalty)).curvature

    curvature = float(curvature_at(params, fixed, x, y))
    if task.step_size * curvature < SMALL_STEP:
        rounds = _flow_evaluations(period * task.step_size * curvature, task.tolerance)
        rounds = max(rounds, STOP * stops)
        found["flow"] = linearizations * rounds * (primal + products)
        if kernel is not None:
            found["function_space_flow"] = linearizations * (kernel + rounds * with_kernel)
    return found


def _kept_sizes(task: Task, moving: PyTree, fixed: PyTree) -> Sizes:
    settings = {"trainable": task.trainable, "memory_limit": task.memory_limit}
    return kept_sizes(task.f, join(moving, fixed), task.data[0], **settings)


def _kernel_operations(task: Task, moving: PyTree, fixed: PyTree) -> tuple[int, int] | None:
    """Of keeping J J^T, and of a product with it; None if it, or the least that it is built from,
    is beyond the memory limit, or f couples its examples."""
    settings = {"trainable": task.trainable, "memory_limit": task.memory_limit}

    def kernel(moving):
        return kept_ntk(task.f, join(moving, fixed), task.data[0], **settings)

    try:
        read = _kept_sizes(task, moving, fixed).read
        return costs.operations(kernel, moving), MEMORY_BOUND * 2 * read
    except ValueError:
        return None


def _flow_evaluations(reach: float, tolerance: float) -> float:
    """Products that a flow of time * lambda_max = reach takes, as seen on small networks."""
    return 8 + 35 * reach ** (1 / 3) * (1e-3 / tolerance) ** 0.25


def _is_quadratic(task: Task, outputs) -> bool:
    y = task.data[1]
    return getattr(y, "shape", None) == outputs.shape and quadratic(task.loss, y) is not None


def needs_steps(algorithm: Algorithm, schedule: Schedule, state: TrainState) -> str | None:
    """Why engine 'steps' alone can do it, if so: what it follows step by step."""
    if algorithm.regularizer is not None:
        return "a regularizer is not of the outputs alone"
    if looks_at("params", schedule, state) and schedule.check_every is None:
        return (
            "the schedule looks at the parameters at every step: give it as "
            "schedules.when(..., check_every=...)"
        )
    asks = algorithm.solved is not None and looks_at("solved", schedule, state)
    if asks and not ends_when_solved(schedule, state):
        return "the schedule looks at `solved` in another way than when_solved(...)"
    return None


def unfit_types(task: Task, params: PyTree) -> str | None:
    """Why engine 'steps' alone can do with the types of what is trained and of the outputs, if so:
    there is one of less than 32 bits, or more than one."""
    moving, _ = split(params, task.trainable)
    outputs = jax.eval_shape(task.f, params, task.data[0])
    types = {jnp.result_type(leaf) for leaf in [outputs, *jax.tree.leaves(moving)]}
    listed = " and ".join(sorted(map(str, types)))
    if any(jnp.finfo(dtype).bits < 32 for dtype in types):
        return (
            f"needs float32 or float64, and there is {listed}: an error estimate drowns in its "
            "rounding; compute in it inside f, or take 'steps'"
        )
    if len(types) > 1:
        return (
            f"needs parameters and outputs of one type, and there are {listed}: give inputs of the "
            "parameters' type, or take 'steps'"
        )
    return None


def check_engine(engine: str, task: Task, params: PyTree, *, stops: bool = False) -> None:
    """Raises ValueError for an engine that does not apply to the task, saying which does.

    stops: whether it is to stop on its way, for a schedule that looks at the parameters.
    """
    outputs = jax.eval_shape(task.f, params, task.data[0])
    if engine != "steps" and (why := unfit_types(task, params)):
        raise ValueError(f"engine '{engine}' {why}")
    if engine == "closed_form":
        if not _is_quadratic(task, outputs):
            raise ValueError(
                "engine 'closed_form' is for half a squared error, or a multiple of it: "
                "take 'flow' or 'function_space' for another loss"
            )
        if task.solved is not None:
            raise ValueError("engine 'closed_form' does not look for when a problem is solved")
    to_minimum = engine.endswith("minimum")
    if to_minimum and task.penalty <= 0:
        raise ValueError(
            f"engine '{engine}' needs a positive penalty: without one the cross-entropy of "
            "separable data has no minimum; take 'flow' with when_solved(...) and a rule `solved`"
        )
    if to_minimum and stops:
        raise ValueError(
            f"engine '{engine}' takes no steps at which the schedule could look at the parameters: "
            "take 'flow', or a schedule that does not look"
        )
    if engine.startswith("function_space"):
        sizes = _kept_sizes(task, *split(params, task.trainable))
        if sizes.form is None:
            taken = outputs.dtype.itemsize * min(sizes.matrix, sizes.factors)
            raise ValueError(
                f"the kernel of {outputs.size} outputs takes {taken} bytes, more than memory_limit="
                f"{task.memory_limit}: take engine 'flow', or fewer examples"
            )


def check_outputs(task: Task, params: PyTree) -> None:
    """Raises ValueError unless f returns one array (N, ...), labels are of its classes, and labels
    (N, ...) go with them where accuracy is to tell when a problem is solved."""
    outputs = output_shape(task.f, params, task.data[0])
    check_labels(task.loss, outputs, task.data[1])
    if task.solved is None or task.solved.accuracy is None:
        return
    y = task.data[1]
    if not jax.tree_util.all_leaves([y]) or y.shape != outputs.shape[:-1]:
        raise ValueError(
            "the rule `solved` counts right labels, one for each row of outputs "
            f"{outputs.shape}: with other targets give Solved(accuracy=None, gradient=...)"
        )


def default_memory() -> int:
    """Bytes for kernels or kept activations: 2 GiB on a CPU, 60 % of a GPU's."""
    return costs.device_memory(2**31, 0.6)
