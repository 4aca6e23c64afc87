"""Products in full precision where a device would round, long sums in half precision."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise import precision
from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.slices import sum_over_slices
from iterlin.training import losses
from iterlin_study.runs import grids
from iterlin_study.runs.groups import Problem
from problems import normal

FULL = "precision=(Precision.HIGHEST, Precision.HIGHEST)"


@pytest.fixture
def accelerator(monkeypatch):
    """A device that is said to be a GPU: what is asked of it is text in the program."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def program(function, *shape) -> str:
    return " ".join(str(jax.make_jaxpr(function)(jnp.ones(shape))).split())


def product() -> str:
    return program(lambda a: a @ a, 2, 2)


@pytest.fixture
def seen():
    """A network that notes in which precision the products of its programs are to be computed."""
    found = []

    def f(params, x):
        found.append(jax.config.jax_default_matmul_precision)
        return x @ params["weight"]

    return f, found


X, Y = jnp.eye(4, 3), jnp.array([0, 1, 1, 0])
ENTROPY = losses.mean(losses.cross_entropy)


def run_all(f, params):
    watch = il.Watch({"train": (X, Y)}, {"loss": ENTROPY})
    problem = Problem(il.Algorithm(f, ENTROPY), lambda key: params, (X, Y), watch)
    grids.run_all(problem, [grids.Run(0, 2, 0.1, (0, 3))])


def integrating(f, params):
    settings = {"schedule": 2, "num_steps": 4, "engine": "function_space"}
    il.train(il.Algorithm(f, ENTROPY, 0.1), params, (X, Y), **settings)


def test_an_accelerator_is_asked_for_full_precision_unless_one_was_set(accelerator):
    with precision.full_precision():
        assert FULL in product()
    assert FULL not in product()
    with jax.default_matmul_precision("tensorfloat32"), precision.full_precision():
        assert precision.matmul_precision() == "tensorfloat32"
        assert FULL not in product()


PRODUCTS = {
    "ntk_product": lambda f, p: il.ntk_product(f, p, X)(jnp.ones((4, 2))),
    "jvp": lambda f, p: il.jacobian_products(f, p, X).jvp(p),
    "jacobian": lambda f, p: il.jacobian(f, p, X),
    "ggn_product in slices": lambda f, p: il.ggn_product(f, p, X, Y, ENTROPY, slice_size=2)(p),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_the_jacobian_are_in_full_precision(accelerator, name):
    found = program(lambda params: PRODUCTS[name](lambda p, x: jnp.tanh(x @ p), params), 3, 2)
    assert found.count("dot_general[") == found.count(FULL) > 0


def test_the_rule_of_a_custom_vjp_is_in_full_precision(accelerator, seen):
    f, found = seen

    @jax.custom_vjp
    def ruled(params, x):
        return f(params, x)

    def back(x, u):
        found.append(jax.config.jax_default_matmul_precision)
        return {"weight": x.T @ u}, jnp.zeros_like(x)

    ruled.defvjp(lambda params, x: (f(params, x), x), back)
    _, _, vjp = il.jacobian_products(ruled, {"weight": jnp.zeros((3, 2))}, X)
    vjp(jnp.ones((4, 2)))
    assert set(found) == {"highest"}


@pytest.mark.parametrize(
    ("train", "backend", "asked"),
    [(run_all, "gpu", "highest"), (integrating, "gpu", "highest"), (integrating, "cpu", None)],
)
def test_training_and_integration_ask_accelerators_alone(train, backend, asked, seen, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    f, found = seen
    train(f, {"weight": jnp.zeros((3, 2))})
    assert set(found) == {asked}


def test_sums_over_slices_are_those_of_the_whole():
    x, params = jnp.ones((4096, 1), jnp.bfloat16), jnp.ones(1, jnp.bfloat16)
    sliced = il.in_slices(lambda p, x: x @ p, 4)
    _, _, vjp = il.jacobian_products(sliced, params, x)
    found = vjp(jnp.ones(4096, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, [4096])
    total = sum_over_slices(lambda part: part.sum(0), 3, x)
    assert total.dtype == jnp.bfloat16
    np.testing.assert_array_equal(total, [4096])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_largest_eigenvalue_of_a_long_vector(dtype):
    value, _ = power_iteration(lambda v: v * 300, jnp.ones(10_000, dtype), 3)
    np.testing.assert_allclose(value, 300, rtol=0.01)


def test_truncated_gauss_newton_where_squares_of_the_gradient_overflow():
    x, target = normal(500, 3), jnp.array([3.0, -1.0, 2.0])
    y = x @ target
    # The gradient's norm is about 1,900, and the largest number of float16 65,504.
    x, y, start = (a.astype(jnp.float16) for a in (x, y, jnp.zeros(3)))
    settings = {"beta": 0.01, "max_steps": 3, "tolerance": 1e-2}
    found = il.truncated_gauss_newton(lambda p, x: x @ p, start, x, y, **settings)
    np.testing.assert_allclose(found.params, target, rtol=0.01)


def test_a_penalty_in_float16_lets_the_parameters_move_far():
    # The squared distance is about 290,000, and the largest number of float16 65,504.
    x, y = jnp.eye(3, dtype=jnp.float16), jnp.asarray([300.0, 200.0, -400.0], jnp.float16)
    half = il.losses.mean(il.losses.squared_error)
    algorithm = il.Algorithm(lambda p, x: x @ p, half, 0.5, penalty=1e-3)
    start = jnp.zeros(3, jnp.float16)
    state, _ = il.train(algorithm, start, (x, y), schedule=100, num_steps=40)
    assert state.diverged_at == -1
    # The derivative of the loss is (theta - y) / 3, and that of the penalty 2e-3 theta.
    np.testing.assert_allclose(state.params, y / 1.006, rtol=0.01)
