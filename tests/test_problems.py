"""Problems by name: the data and network that are asked for, and clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import losses
from iterlin.study import images, problems
from problems import flat

NETWORK = {
    "name": "lenet",
    "channels": 2,
    "kernel_size": 3,
    "padding": "SAME",
    "hidden": [5],
}


def test_a_problem_holds_what_was_asked_for():
    problem = problems.image_problem(
        "digits", NETWORK, train=60, validation=20, test=30, seen=50, batch_size=10, diagnose=7
    )
    assert problem.train[0].shape == (60, 8, 8, 1)
    sizes = {name: len(y) for name, (_, y) in problem.watch.sets.items()}
    assert sizes == {"train": 50, "validation": 20, "test": 30}
    assert (problem.algorithm.batch_size, problem.diagnose, problem.algorithm.augment) == (
        10,
        7,
        None,
    )
    params = problem.init(jax.random.key(0))
    outputs = problem.algorithm.f(params, problem.train[0][:4])
    assert outputs.shape == (4, 10)
    y = problem.train[1][:4]
    assert float(problem.algorithm.loss(outputs, y)) == pytest.approx(
        float(losses.cross_entropy(outputs, y)) / 4
    )
    chosen = problem.subset(20, 3)
    np.testing.assert_array_equal(chosen, images.nested_subset(problem.train[1], 20, 3))
    assert np.bincount(np.asarray(problem.train[1])[chosen]).tolist() == [2] * 10


def test_nothing_is_held_out_unless_asked_for():
    problem = problems.image_problem("digits", NETWORK, train=60, test=30)
    assert set(problem.watch.sets) == {"train", "test"}


def test_the_sum_is_the_mean_times_the_examples():
    summed = problems.image_problem("digits", NETWORK, train=60, reduction="sum")
    outputs, y = jnp.ones((5, 10)), summed.train[1][:5]
    mean = losses.mean(losses.cross_entropy)(outputs, y)
    assert float(summed.algorithm.loss(outputs, y)) == pytest.approx(5 * float(mean))
    # What is recorded is the mean in any case.
    assert float(summed.watch.metrics["loss"](outputs, y)) == pytest.approx(float(mean))


def test_a_snapshot_gives_the_parameters_back():
    problem = problems.image_problem("digits", NETWORK, train=60, test=30)
    params = problem.init(jax.random.key(4))

    class State:
        pass

    state = State()
    state.params = params
    vector = problems.snapshot(state)["snapshot"]
    back = problems.restored(problem, np.asarray(vector))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    np.testing.assert_array_equal(flat(back), flat(params))


def test_normalized_networks_bring_their_statistics():
    network = {"name": "resnet18", "width": 2, "normalization": "batch"}
    problem = problems.image_problem("digits", network, train=20, test=10, augment=True)
    assert problem.algorithm.normalization is not None
    assert problem.algorithm.augment is images.augment
    plain = problems.image_problem("digits", {"name": "resnet18", "width": 2}, train=20, test=10)
    assert plain.algorithm.normalization is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": {"name": "vgg"}}, "vgg"),
        ({"network": {"channels": 3}}, "None"),
        ({"network": {"name": "lenet", "depth": 3}}, "network lenet: .*depth"),
        ({"dataset": "svhn"}, "svhn"),
        ({"reduction": "max"}, "max"),
    ],
)
def test_what_is_unknown_is_named(change, message):
    settings = {"dataset": "digits", "network": NETWORK, "train": 20} | change
    with pytest.raises(ValueError, match=message):
        problems.image_problem(**settings)


def test_a_description_names_data_sizes_and_network():
    problem = problems.image_problem("digits", NETWORK, train=60, validation=20, test=30)
    text = problems.describe("digits", NETWORK, problem)
    assert "60 to train, 20 for validation, 30 to test; lenet (channels 2" in text
