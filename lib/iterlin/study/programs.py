"""What runs do, compiled: one loop and one evaluation for any number of runs of a kind.

Runs that differ only in numbers (period, seed, step size, penalty, examples) go through the same
program together, their states led by an axis of runs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from iterlin.algorithm import Algorithm, TrainState
from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.runtime import checkpoints, costs
from iterlin.runtime.chunks import Outcome, OutOfTime, out_of_time, run_in_chunks
from iterlin.schedules import NEVER, Solved, every, when_solved
from iterlin.study.diagnostics import kernel_diagnostics
from iterlin.training import observer

OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
SLICE = 500
# The state's leaves lead with the run, all but the step, which the runs have in common.
STATE_AXES = TrainState(None, *[0] * (len(TrainState._fields) - 1))


class Run(NamedTuple):
    """One run of Algorithm 3.

    seed draws the initial parameters, the order of the examples and the augmentation. period may be
    infinity; until_solved makes it the longest that a linear problem is trained (`when_solved`).
    eval_steps: increasing, the last is the length of the run. examples: the size of its training
    set, all of it if None.
    """

    seed: int
    period: float
    step_size: float
    eval_steps: tuple[int, ...]
    penalty: float = 0.0
    optimizer: str = "sgd"
    until_solved: bool = False
    examples: int | None = None


@dataclass(frozen=True)
class Problem:
    """What the runs of a grid have in common.

    f(params, x) -> (N, O), init(key) -> params; loss is minimised over train = (x, y) and, for each
    set in evaluate = {"test": (x, y)}, each of metrics = {"loss": loss, ...} is recorded of the
    network and of its proxy. subset(size, seed) -> indices says which examples a run of fewer
    trains on. diagnose: size of the sample on which the kernel is followed
    (`diagnostics.kernel_diagnostics`), none at 0. observe(state) -> {name: array} adds to the
    history. The rest is as for `training.train`.
    """

    f: Network
    init: Callable[[Array], PyTree]
    train: tuple[Array, Array]
    loss: Loss
    evaluate: Mapping[str, tuple[Array, Array]]
    metrics: Mapping[str, Callable[[Array, Array], Array]]
    batch_size: int | None = None
    augment: Callable[[Array, Array], Array] | None = None
    reset_optimizer: bool = False
    solved: Solved | None = None
    normalization: Any = None
    subset: Callable[[int, int], np.ndarray] | None = None
    diagnose: int = 0
    observe: Callable[[TrainState], dict[str, Array]] | None = None


def is_plain(run: Run) -> bool:
    return run.period == 1 and not run.until_solved


class Program:
    """The compiled loop and evaluation of one kind of runs, for any number of them at once."""

    def __init__(self, problem: Problem, example: Run):
        self.problem, self.example = problem, example
        self.base = Algorithm(
            f=problem.f,
            loss=problem.loss,
            optimizer=OPTIMIZERS[example.optimizer](example.step_size),
            batch_size=problem.batch_size,
            augment=problem.augment,
            penalized=example.penalty > 0,
            reset_optimizer=problem.reset_optimizer,
            solved=problem.solved if example.until_solved else None,
            plain=is_plain(example),
            normalization=problem.normalization,
        )
        self._compiled = {}

    @cached_property
    def memory(self) -> int:
        """Bytes that a step of one run takes: an upper bound, as if nothing were reused."""
        return costs.intermediate_bytes(self._step, *self._one_run())

    @cached_property
    def operations(self) -> int:
        """Operations of a step of one run (`costs.operations`), but for looks at what is solved."""

        def step(state, values, examples, train):
            algorithm = dataclasses.replace(self._algorithm(values), solved=None)
            return algorithm.step(state, (*train, examples), self._schedule(values))

        return costs.operations(step, *self._one_run())

    def _one_run(self):
        state, values, examples = self._inputs([self.example])

        def first(tree):
            return jax.tree.map(lambda leaf: leaf[0], tree)

        alone = TrainState(state.step, *[first(leaf) for leaf in state[1:]])
        return alone, first(values), first(examples), self.problem.train

    def run(
        self, runs: Sequence[Run], *, label: str, folder: Path | None, data_digest: str | None
    ) -> Outcome:
        """Run them together; the leaves of the outcome lead with the run.

        In `folder` the file's name is the digest of the programs and of all that goes into them.
        Raises OutOfTime where the deadline has passed and nothing is kept to report.
        """
        if len(runs) not in self._compiled:
            self._compiled[len(runs)] = self._programs(len(runs))
        advance, observe, digests = self._compiled[len(runs)]
        state, values, examples = self._inputs(runs)
        shared = (self.problem.train, self.problem.evaluate)
        eval_steps = np.asarray(runs[0].eval_steps)
        checkpoint, fingerprint = None, ""
        if folder is not None:
            if not digests:
                one = jnp.asarray(1, jnp.int32)
                digests.append(advance.trace(state, values, examples, shared[0], one).jaxpr)
                digests.append(observe.trace(state, values, examples, *shared).jaxpr)
                digests[:] = [checkpoints.fingerprint(digests)]
            fingerprint = checkpoints.fingerprint(
                [*digests, data_digest], state, values, examples, eval_steps
            )
            checkpoint = folder / f"{fingerprint[:24]}.npz"
        if out_of_time() and (checkpoint is None or not checkpoint.exists()):
            raise OutOfTime(label)
        return run_in_chunks(
            state,
            lambda s, count: advance(s, values, examples, shared[0], count),
            lambda s: observe(s, values, examples, *shared),
            eval_steps,
            label=label,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
        )

    def _inputs(self, runs):
        """Initial states, the numbers in which the runs differ, and their examples."""
        keys = jnp.stack([jax.random.fold_in(jax.random.key(0), run.seed) for run in runs])
        values = {
            "period": jnp.asarray([int(min(run.period, NEVER)) for run in runs], jnp.int32),
            "step_size": jnp.asarray([run.step_size for run in runs]),
            "penalty": jnp.asarray([run.penalty for run in runs]),
        }
        size = self.example.examples
        if size is None:
            size = len(self.problem.train[1])
            examples = jnp.tile(jnp.arange(size, dtype=jnp.int32), (len(runs), 1))
        else:
            chosen = [self.problem.subset(size, run.seed) for run in runs]
            examples = jnp.asarray(np.stack(chosen), jnp.int32)

        def start(key, one_values, one_examples):
            data = (*self.problem.train, one_examples)
            params = self.problem.init(key)
            return self._algorithm(one_values).start(params, data, jax.random.fold_in(key, 1))

        state = jax.vmap(start, out_axes=STATE_AXES)(keys, values, examples)
        return state, values, examples

    def _algorithm(self, values) -> Algorithm:
        optimizer = OPTIMIZERS[self.example.optimizer](values["step_size"])
        return dataclasses.replace(self.base, optimizer=optimizer, penalty=values["penalty"])

    def _schedule(self, values):
        return (when_solved if self.example.until_solved else every)(values["period"])

    def _step(self, state, values, examples, train):
        data = (*train, examples)
        return self._algorithm(values).step(state, data, self._schedule(values))

    def _programs(self, size):
        """advance and observe for `size` runs; a single one is not vmapped."""

        def advance(state, values, examples, train, count):
            data = (*train, examples)
            return self._algorithm(values).advance(state, data, count, self._schedule(values))

        def observe(state, values, examples, train, evaluate):
            algorithm = self._algorithm(values)
            see = observer(algorithm, evaluate, self.problem.metrics, slice_size=SLICE)
            seen = see(state)
            if self.problem.diagnose:
                sample = tuple(part[: self.problem.diagnose] for part in train)
                seen |= kernel_diagnostics(
                    algorithm.network(state), state.params, state.anchor, sample, self.problem.loss
                )
            if self.problem.observe is not None:
                seen |= self.problem.observe(state)
            return seen

        if size == 1:
            advance, observe = _alone(advance, True), _alone(observe, False)
            return jax.jit(advance, donate_argnums=0), jax.jit(observe), []
        axes = (STATE_AXES, 0, 0, None, None)
        return (
            jax.jit(jax.vmap(advance, axes, STATE_AXES), donate_argnums=0),
            jax.jit(jax.vmap(observe, axes)),
            [],
        )


def _alone(function, returns_state):
    """A program of one run, called with leaves that lead with that run."""

    def first(tree):
        return jax.tree.map(lambda leaf: leaf[0], tree)

    def rest(tree):
        return jax.tree.map(lambda leaf: leaf[None], tree)

    @wraps(function)
    def apply(state, values, examples, *others):
        single = TrainState(state.step, *[first(leaf) for leaf in state[1:]])
        out = function(single, first(values), first(examples), *others)
        if returns_state:
            return TrainState(out.step, *[rest(leaf) for leaf in out[1:]])
        return rest(out)

    return apply
