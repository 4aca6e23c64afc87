"""The image experiments' common ground: a data set and a network by name, as a problem to run."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import check_one_of
from iterlin.training import losses
from iterlin.training.algorithm import Algorithm
from iterlin.training.watching import Watch
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from iterlin_study.data import images
from iterlin_study.networks import convnets
from iterlin_study.runs.diagnostics import kernel_diagnostics
from iterlin_study.runs.groups import Problem, key_of

NETWORKS = {"lenet": convnets.lenet, "resnet18": convnets.resnet18}
REDUCTIONS = ("mean", "sum")


def image_problem(
    dataset: str,
    network: Mapping,
    *,
    train: int | None = None,
    validation: int = 0,
    test: int | None = None,
    seen: int = 1000,
    batch_size: int | None = None,
    augment: bool = False,
    reduction: str = "mean",
    seed: int = 0,
    diagnose: int = 0,
    observe: Callable | None = None,
    **settings,
) -> Problem:
    """Softmax cross-entropy on a data set of `images.load`, with a network of `convnets`.

    network: {"name": "lenet", ...} with the settings of that function. train, validation, test:
    numbers of examples, None for all; the subsets are class-balanced and drawn by `seed`, the same
    for every run, and runs on fewer examples take nested subsets of the training set. Loss and
    accuracy are recorded on the first `seen` of a run's training examples and on all of validation
    (where there are any) and test. The loss is the mean over the examples of a batch, or their sum.
    diagnose, observe and the further `settings` are those of `groups.Problem` and its algorithm.

    Raises ValueError for an unknown data set, network or reduction, and as those functions do.
    """
    check_one_of("reduction", reduction, REDUCTIONS)
    split = images.load(dataset, train=train, validation=validation, test=test, seed=seed)
    model = create(network, split.train.x.shape[1:])
    entropy = losses.mean(losses.cross_entropy)
    sets = {
        "train": (split.train.x[:seen], split.train.y[:seen]),
        "validation": tuple(split.validation),
        "test": tuple(split.test),
    }

    def subset(size, run_seed):
        return images.nested_subset(split.train.y, size, run_seed)

    algorithm = Algorithm(
        f=model.apply,
        loss=entropy if reduction == "mean" else losses.cross_entropy,
        normalization=getattr(model, "normalization", None),
    )
    return Problem(
        algorithm,
        model.init,
        train=(jnp.asarray(split.train.x), jnp.asarray(split.train.y)),
        watch=Watch(
            sets={name: chosen for name, chosen in sets.items() if len(chosen[1])},
            metrics={"loss": entropy, "accuracy": losses.accuracy},
        ),
        subset=subset,
        diagnose=diagnose,
        observe=observe,
        batch_size=batch_size,
        augment=images.augment if augment else None,
    ).but(**settings)


def half_squared(outputs, labels):
    """The loss 1/2 ||outputs - one-hot labels||^2, the mean over examples."""
    targets = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return losses.mean(losses.squared_error)(outputs, targets)


def boundary_step_sizes(problem: Problem, num_seeds: int) -> list[float]:
    """Return 2 / lambda_max of each seed's first kernel J J^T / N on the N training examples.

    Full-batch gradient descent on `half_squared` is stable at a frozen kernel up to this step size.
    """
    loss = problem.algorithm.loss

    @full_precision()
    @jax.jit
    def eigenvalue(key):
        params = problem.init(key)
        seen = kernel_diagnostics(problem.algorithm.f, params, params, problem.train, loss)
        return seen["kernel_eigenvalue"]

    return [2 / float(eigenvalue(key_of(seed))) for seed in range(num_seeds)]


def snapshot(state) -> dict[str, jnp.ndarray]:
    """The parameters of a run as one vector, for `Problem.observe`; `restored` undoes it."""
    return {"snapshot": ravel_pytree(state.params)[0]}


def restored(problem: Problem, vector) -> PyTree:
    """The params that a `snapshot` was taken of."""
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    flat, unravel = ravel_pytree(zeros)
    return unravel(jnp.asarray(vector, flat.dtype))


def create(network: Mapping, input_shape):
    """The network that a parameter file describes; ValueError names what is unknown."""
    settings = dict(network)
    name = settings.pop("name", None)
    check_one_of("network", name, NETWORKS)
    if "hidden" in settings:
        settings["hidden"] = tuple(settings["hidden"])
    try:
        return NETWORKS[name](tuple(input_shape), **settings)
    except TypeError as error:
        raise ValueError(f"network {name}: {error}") from None


def describe(dataset: str, network: Mapping, problem: Problem) -> str:
    """One line for a record: data with their hash, sizes, network."""
    sizes = [f"{len(problem.train[1])} to train"]
    sizes += [
        f"{len(y)} to {name}" if name == "test" else f"{len(y)} for {name}"
        for name, (_, y) in problem.watch.sets.items()
        if name != "train"
    ]
    settings = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    return f"{images.describe(dataset)}; {', '.join(sizes)}; {network['name']} ({settings})"
