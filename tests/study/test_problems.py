"""Problems by name: the data and network that are asked for, and clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin_study.data import images
from iterlin_study.runs import problems
from iterlin_study.runs.groups import key_of
from problems import dense
from refusals import refused

NETWORK = {"name": "lenet", "channels": 2, "kernel_size": 3, "padding": "SAME", "hidden": [5]}


def test_a_problem_holds_what_was_asked_for():
    sizes = {"train": 60, "validation": 20, "test": 30}
    problem = problems.image_problem("digits", NETWORK, **sizes, seen=50, batch_size=10, diagnose=7)
    x, y = problem.train
    watched = {name: len(y) for name, (_, y) in problem.watch.sets.items()}
    assert watched == sizes | {"train": 50}
    assert (problem.batch_size, problem.diagnose) == (10, 7)
    assert problem.augment is problem.algorithm.normalization is None
    params = jax.eval_shape(problem.init, jax.random.key(0))
    assert jax.eval_shape(problem.algorithm.f, params, x[:4]).shape == (4, 10)
    np.testing.assert_array_equal(problem.subset(20, 3), images.nested_subset(y, 20, 3))
    text = problems.describe("digits", NETWORK, problem)
    assert "60 to train, 20 for validation, 30 to test; lenet (channels 2" in text
    network = {"name": "resnet18", "width": 2, "normalization": "batch"}
    other = problems.image_problem("digits", network, train=20, test=10, augment=True)
    assert other.algorithm.normalization is not None
    assert other.augment is images.augment


GIVEN = {"dataset": "digits", "network": NETWORK, "train": 20}
test_what_is_unknown_is_named = refused(
    lambda change: problems.image_problem(**GIVEN | change),
    ({"network": {"name": "vgg"}}, "vgg"),
    ({"network": {"name": "lenet", "depth": 3}}, "network lenet: .*depth"),
    ({"dataset": "svhn"}, "svhn"),
)


def test_the_boundary_is_that_of_the_first_kernel_of_each_seed():
    problem = problems.image_problem("digits", NETWORK, train=6, test=10)
    problem = problem.but(loss=problems.half_squared)
    for seed, found in enumerate(problems.boundary_step_sizes(problem, 2)):
        jacobian = dense(problem.algorithm.f, problem.init(key_of(seed)), problem.train[0])
        largest = np.linalg.norm(jacobian, 2) ** 2 / 6
        assert found == pytest.approx(2 / largest, rel=0.05)  # ten steps of power iteration
        assert found >= 2 / largest * (1 - 1e-6)


def test_half_squared_is_half_the_mean_squared_distance_to_one_hot_labels():
    outputs = jnp.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    found = problems.half_squared(outputs, jnp.array([0, 2]))
    assert float(found) == pytest.approx(4 / 2 / 2)
