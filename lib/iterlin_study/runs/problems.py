"""Make the problem of an image experiment from the names of a data set and a network."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from iterlin.linearise.devices import to_array
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


def image_problem(
    dataset: str,
    network: Mapping,
    *,
    train: int | None = None,
    validation: int = 0,
    test: int | None = None,
    seen: int = 1000,
    augment: bool = False,
    **settings,
) -> Problem:
    """Return the problem of training a network on images with softmax cross-entropy.

    Loss and accuracy are recorded on training, validation and test examples. Runs on fewer examples
    take nested subsets of the training set.

    Args:
        dataset: Name of a data set of `images.load`.
        network: As for `create`.
        train: Number of training examples; None for all. The subsets are balanced by class and the
            same for every run.
        validation: Number of validation examples, held out from the training set.
        test: Number of test examples; None for all.
        seen: Metrics are recorded on this many of a run's training examples, the first ones.
        augment: Whether to augment the images.
        **settings: Further fields of `groups.Problem`, such as `batch_size`, or of its algorithm.

    Raises:
        ValueError: As `images.load` and `create`.
    """
    split = images.load(dataset, train=train, validation=validation, test=test)
    model = create(network, split.train.x.shape[1:])
    entropy = losses.mean(losses.cross_entropy)
    sets = {
        "train": (split.train.x[:seen], split.train.y[:seen]),
        "validation": tuple(split.validation),
        "test": tuple(split.test),
    }

    def subset(size, run_seed):
        return images.nested_subset(split.train.y, size, run_seed)

    return Problem(
        Algorithm(model.apply, entropy, normalization=getattr(model, "normalization", None)),
        model.init,
        train=(to_array(split.train.x), to_array(split.train.y)),
        watch=Watch(
            sets={name: chosen for name, chosen in sets.items() if len(chosen[1])},
            metrics={"loss": entropy, "accuracy": losses.accuracy},
        ),
        subset=subset,
        augment=images.augment if augment else None,
    ).but(**settings)


def half_squared(outputs, labels):
    """Return the loss 1/2 ||outputs - one-hot labels||^2, the mean over examples."""
    targets = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return losses.mean(losses.squared_error, over="examples")(outputs, targets)


def boundary_step_sizes(problem: Problem, num_seeds: int) -> list[float]:
    """Return the largest stable step size of linearised training, for each seed.

    It is 2 / lambda_max of the kernel J J^T / N at the initial parameters, on the N training
    examples. Full-batch gradient descent on `half_squared` with a frozen kernel is stable for
    smaller step sizes. Power iteration overestimates it.
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
    """Return the parameters of a run as one vector (P,), for `Problem.observe`."""
    return {"snapshot": ravel_pytree(state.params)[0]}


def restored(problem: Problem, vector) -> PyTree:
    """Return the parameters that `snapshot` has turned into a vector."""
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    flat, unravel = ravel_pytree(zeros)
    return unravel(jnp.asarray(vector, flat.dtype))


def create(network: Mapping, input_shape):
    """Return the network that a parameter file describes, for images of a shape (H, W, C).

    network: {"name": "lenet" or "resnet18", ...} with the arguments of that function. Raises
    ValueError if the name or an argument is unknown.
    """
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
    """Describe a problem in one line, for a record: data with their hash, sizes, network."""
    sizes = [f"{len(problem.train[1])} to train"]
    sizes += [
        f"{len(y)} to {name}" if name == "test" else f"{len(y)} for {name}"
        for name, (_, y) in problem.watch.sets.items()
        if name != "train"
    ]
    settings = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    return f"{images.describe(dataset)}; {', '.join(sizes)}; {network['name']} ({settings})"
