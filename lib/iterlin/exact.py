"""Iterative linearisation of any period for the price of a few passes (Algorithm 3, full batch).

Between two linearisations the problem is convex and its Jacobian fixed, so that what K steps do can
be had without taking them (`engines`). `integrate` takes the schedules that `training.train` takes
and returns what it returns.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters import partial_eval
from jaxtyping import PyTree
from tqdm import tqdm

from iterlin import checkpoints, costs, linear_model, training
from iterlin.algorithm import Algorithm, Solved, TrainState
from iterlin.chunks import CHECKPOINT, History, OutOfTime, out_of_time
from iterlin.convex_flow import Objective, begin
from iterlin.engines import (
    ClosedForm,
    GradientFlow,
    Progress,
    Steps,
    Task,
    ToMinimum,
    quadratic,
    slice_size,
)
from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.schedules import NEVER, Schedule
from iterlin.validation import non_negative, one_of, open_unit, positive

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
CPU_MEMORY, GPU_SHARE = 2**31, 0.6
# A product with a matrix in memory waits for it: about as long as this many operations each.
MEMORY_BOUND = 20
# Steps that a schedule is asked about at once.
BLOCK = 2**16


def integrate(
    f: Network,
    params: PyTree,
    data,
    *,
    loss: Loss,
    step_size: float,
    schedule: Schedule,
    num_steps: int,
    engine: str = "auto",
    penalty: float = 0.0,
    tolerance: float = 1e-3,
    solved: Solved | None = None,
    evaluate: Mapping[str, tuple] | None = None,
    metrics: training.Metrics | None = None,
    eval_steps=None,
    memory_limit: int | None = None,
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`training.train` by plain gradient descent on the full batch, without its steps.

    f must be smooth where it is expanded and loss(outputs, y) convex in its outputs. Engines
    (`engines` says what each does): "closed_form" and "function_space" give the very steps, to
    rounding, as do "steps" (`train` itself) and "kept_steps" (its activations kept for the whole
    period); "function_space_flow" and "flow" the gradient flow for a time step_size * K, to
    `tolerance` a step, relative to outputs of order 1; "minimum" solves every linear problem, of
    positive penalty, to a relative gradient of `tolerance`: a period of any length is one solve.
    "auto" is the cheapest by an estimate that it prints, among them a flow only where step_size
    lambda_max < 0.1 at the first parameters.

    `solved` with `schedules.when_solved(K)` ends a linearisation early: a flow looks at every step
    of its own. Kernels and kept activations stay within memory_limit bytes (2 GiB on a CPU, 60 % of
    a GPU's), else products go through the examples a few at a time.

    The history is that of `train`, and "evaluations", products with J J^T so far, and "stability",
    step_size lambda_max of the loss at the proxy's outputs (NaN where it is not followed).
    With a checkpoint, a file, a run that was ended goes on from there.

    Raises ValueError before any compute: as `train`; for an unknown engine; closed_form and a loss
    that is not half a squared error; minimum without penalty, which for cross-entropy has no
    minimum to find; a kernel beyond memory_limit; a schedule that looks at the parameters.
    """
    one_of("engine", engine, ENGINES)
    eval_steps = training._check(data, num_steps, None, None, eval_steps, None)
    if num_steps >= NEVER:
        raise ValueError(f"num_steps must be below {NEVER}, got {num_steps}")
    positive("step_size", step_size)
    non_negative("penalty", penalty)
    open_unit("tolerance", tolerance)
    memory_limit = _memory() if memory_limit is None else memory_limit
    algorithm = Algorithm(f=f, loss=loss, optimizer=optax.sgd(step_size))
    state = algorithm.start(params, data, jax.random.key(0))
    _check_schedule(schedule, state)
    rule = solved if _ends_when_solved(schedule, state) else None
    task = Task(f, data, loss, step_size, penalty, tolerance, memory_limit, rule)
    asked = _Asked(schedule)
    if engine == "auto":
        period = asked.first_after(state, num_steps)
        estimates = estimate(task, params, period=period, num_steps=num_steps)
        engine = min(estimates, key=estimates.get)
        listed = ", ".join(f"{name} {cost:.1e}" for name, cost in estimates.items())
        if progress is not False:
            print(f"integrate: {engine} (estimated operations: {listed})", file=sys.stderr)
    _check_engine(engine, task, params)
    if engine == "steps":
        state, history = training.train(
            f,
            params,
            data,
            loss=loss,
            optimizer=optax.sgd(step_size),
            schedule=schedule,
            num_steps=num_steps,
            penalty=penalty,
            solved=solved,
            evaluate=evaluate,
            metrics=metrics,
            eval_steps=eval_steps,
            checkpoint=checkpoint,
            progress=progress,
        )
        steps = history["step"]
        return state, history | {"evaluations": steps, "stability": np.full(len(steps), np.nan)}
    observe = jax.jit(training.observer(algorithm, evaluate, metrics or {"loss": loss}))
    run = _Run(ENGINES[engine](task), asked, state, observe, eval_steps, checkpoint)
    return run.to_the_end(progress)


def estimate(task: Task, params: PyTree, *, period: int, num_steps: int) -> dict[str, float]:
    """Operations that each engine that applies would take, for periods of that many steps.

    The fields of `engines.Task` say what is trained. Counted are matrix products (`costs`), those
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
    # Rows of J one example and output at a time, then all pairs of them.
    kernel = 2 * outputs.shape[1] * primal + outputs.size**2 * numbers
    with_kernel = MEMORY_BOUND * 2 * outputs.size**2
    fits = _kernel_bytes(outputs) <= task.memory_limit
    found = {"steps": num_steps * (primal + products)}
    if task.solved is None and quadratic(task.loss, y) is not None:
        smaller, larger = sorted((outputs.size, numbers))
        found["closed_form"] = linearizations * 20 * smaller**2 * larger
    if fits:
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
        if fits:
            found["function_space_flow"] = linearizations * (kernel + rounds * with_kernel)
    return found


def _flow_evaluations(reach: float, tolerance: float) -> float:
    """Products that a flow of time * lambda_max = reach takes, as seen on small networks."""
    return 8 + 35 * reach ** (1 / 3) * (1e-3 / tolerance) ** 0.25


def _kernel_bytes(outputs) -> int:
    return outputs.size**2 * outputs.dtype.itemsize


def _memory() -> int:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return CPU_MEMORY
    return int(GPU_SHARE * device.memory_stats()["bytes_limit"])


def _check_engine(engine: str, task: Task, params: PyTree) -> None:
    outputs = jax.eval_shape(task.f, params, task.data[0])
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


def _check_schedule(schedule: Schedule, state: TrainState) -> None:
    """Refuses a schedule that looks at theta, which is not followed step by step."""

    def asked(params):
        return schedule(state.step, state._replace(params=params))

    jaxpr = jax.make_jaxpr(asked)(state.params).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    if any(used):
        raise ValueError(
            "the schedule looks at the parameters, which only engine 'steps' follows step by step"
        )


def _ends_when_solved(schedule: Schedule, state: TrainState) -> bool:
    one = jnp.asarray(1, jnp.int32)
    before = schedule(one, state._replace(solved=jnp.asarray(False)))
    return bool(schedule(one, state._replace(solved=jnp.asarray(True)))) and not bool(before)


class _Asked:
    """A schedule's answers, which depend on the step and on when it last said yes."""

    def __init__(self, schedule: Schedule):
        def block(first, state):
            steps = first + jnp.arange(BLOCK, dtype=jnp.int32)
            yes = jax.vmap(lambda step: schedule(step, state))(steps)
            return jnp.any(yes), jnp.argmax(yes)

        self._block = jax.jit(block)
        self._now = jax.jit(schedule)

    def now(self, state: TrainState) -> bool:
        return bool(self._now(state.step, state))

    def first_after(self, state: TrainState, limit: int) -> int:
        """The first step beyond the present one, `limit` at most, at which it says yes."""
        first = int(state.step) + 1
        while first < limit:
            found, place = self._block(jnp.asarray(first, jnp.int32), state)
            if found:
                return min(first + int(place), limit)
            first += BLOCK
        return limit


class _Run:
    """One run on its way: `state` is as of the latest stop, `position` within its linearisation."""

    def __init__(self, engine, asked: _Asked, state: TrainState, observe, eval_steps, checkpoint):
        self.engine, self.asked, self.observe = engine, asked, observe
        self.state, self.eval_steps, self.checkpoint = state, eval_steps, checkpoint
        self.position: Progress = engine.begin(state.params)
        self.names = [*jax.eval_shape(observe, state), "evaluations", "stability"]
        self.spent, self.rows, self.fingerprint = 0, [], ""
        self.written = time.monotonic()
        if checkpoint is not None:
            programs = [*engine.programs(state.params), observe.trace(state).jaxpr]
            inputs = (state, engine.task.data, np.asarray(eval_steps))
            self.fingerprint = checkpoints.fingerprint(programs, *inputs)
            self._load()

    def to_the_end(self, progress: bool | None) -> tuple[TrainState, History]:
        hidden = not sys.stderr.isatty() if progress is None else not progress
        total = int(self.eval_steps[-1])
        with tqdm(total=total, initial=int(self.state.step), disable=hidden) as bar:
            for target in self.eval_steps[len(self.rows) :].tolist():
                self._advance(target, bar)
                seen = jax.device_get(self.observe(self.state))
                seen["evaluations"] = np.asarray(self.spent + self.position.evaluations)
                seen["stability"] = np.asarray(self.position.stability)
                self.rows.append(seen)
                self._write_now_and_then()
        if self.checkpoint is not None:
            self._write()
        return self.state, {"step": np.asarray(self.eval_steps), **self._history()}

    def _advance(self, target: int, bar) -> None:
        """To that step, linearising anew whenever the schedule says so on the way."""
        while (step := int(self.state.step)) < target:
            anchored = int(self.state.anchored_at)
            if step > anchored and self.asked.now(self.state):
                self.spent += self.position.evaluations
                self.position = self.engine.begin(self.state.params, self.position)
                anchored = step
                self.state = self.state._replace(
                    anchor=self.state.params,
                    updates=self.state.updates + 1,
                    anchored_at=self.state.step,
                    solved=jnp.asarray(False),
                )
            stop = self.asked.first_after(self.state, target)
            while not self._arrived(stop - anchored):
                self.position = self.engine.forward(self.position, stop - anchored)
                bar.set_postfix_str(f"{self.spent + self.position.evaluations} products")
                self._write_now_and_then()
            taken = stop - anchored
            if self.position.solved:
                taken = min(taken, max(1, self.position.steps))
            params = self.engine.parameters(self.position)
            self.state = self.state._replace(
                step=jnp.asarray(anchored + taken, jnp.int32),
                params=params,
                solved=jnp.asarray(self.position.solved),
            )
            bar.update(anchored + taken - bar.n)

    def _arrived(self, steps: int) -> bool:
        return self.position.solved or self.position.steps >= steps

    def _write_now_and_then(self) -> None:
        ending = out_of_time()
        late = time.monotonic() - self.written >= CHECKPOINT
        if self.checkpoint is not None and (ending or late):
            self._write()
        if ending:
            raise OutOfTime(f"stopped at step {int(self.state.step)}: out of time")

    def _write(self) -> None:
        notes = self.position._asdict() | {"spent": self.spent}
        del notes["anchor"], notes["inner"]
        tree = (self.state, self.position.inner, self._history())
        checkpoints.save(self.checkpoint, tree, fingerprint=self.fingerprint, notes=notes)
        self.written = time.monotonic()

    def _load(self) -> None:
        """Goes on from the file, if there is one."""
        like = (self.state, self.position.inner, {name: np.zeros(0) for name in self.names})
        found = checkpoints.load(self.checkpoint, like, fingerprint=self.fingerprint)
        if found is None:
            return
        (self.state, inner, kept), notes = found
        self.spent = notes.pop("spent")
        self.position = Progress(self.state.anchor, inner, **notes)
        count = kept["updates"].shape[-1]
        self.rows = [{name: kept[name][..., i] for name in self.names} for i in range(count)]

    def _history(self) -> History:
        if not self.rows:
            return {name: np.zeros(0) for name in self.names}
        return {name: np.stack([row[name] for row in self.rows], -1) for name in self.names}
