"""Traced programs, and the layers in them: where a parameter is a weight and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.kernels.layers import find_layers
from iterlin.linearise.programs import eval_program, trace_program
from iterlin.networks.mlp import mlp
from iterlin_study.networks import convnets
from problems import normal


def nested(x):
    inner = jax.jit(lambda v: jax.jit(jnp.tanh)(2 * v) + 1.0)
    carry, outputs = jax.lax.scan(lambda c, v: (c + v, c * v), x.sum(), inner(inner(x)))
    return jax.lax.cond(carry > 0, lambda: outputs, lambda: carry * outputs)


@pytest.mark.parametrize("function", [nested, lambda x: jax.nn.relu(x) - jax.nn.softplus(x)])
def test_a_traced_program_has_value_and_derivative_of_its_function(function):
    """At 0, where relu's own rule (0) and that of the maximum in it (1/2) differ, too."""
    x = jnp.asarray([-1.5, 0.0, 2.0])
    program = trace_program(function, x)

    def again(x):
        return eval_program(program, [x], {})[0]

    np.testing.assert_allclose(again(x), function(x), rtol=1e-15)
    np.testing.assert_allclose(jax.jacrev(again)(x), jax.jacrev(function)(x), atol=1e-15)


KEY = jax.random.key(0)


def layers_of(f, params, x):
    """{weight: bias}, by path in params."""
    paths, tree = jax.tree.flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    leaves = [leaf for _, leaf in paths]
    of_one = lambda given, e: f(jax.tree.unflatten(tree, given), e[None])[0]  # noqa: E731
    program = trace_program(of_one, leaves, x[0])
    names.append(None)  # where there is no bias
    found = find_layers(program, len(leaves))
    return {names[each.weight]: names[-1 if each.bias is None else each.bias] for each in found}


@pytest.mark.parametrize("parameterization", ["standard", "ntk"])
def test_dense_layers_take_their_biases_even_behind_a_factor(parameterization):
    model = mlp((5, 4, 3, 1), parameterization=parameterization)
    found = layers_of(model.apply, model.init(KEY), normal(2, 5))
    assert found == {f"{i}.weight": f"{i}.bias" for i in range(3)}


@pytest.mark.parametrize("method", ["patches", "direct"])
def test_convolutions_are_found_and_biases_behind_a_pool_are_not_theirs(method):
    model = convnets.lenet((12, 12, 1), channels=2, kernel_size=3, hidden=(4,), method=method)
    found = layers_of(model.apply, model.init(KEY), normal(2, 12, 12, 1))
    dense = {f"dense{i}.kernel": f"dense{i}.bias" for i in (1, 2)}
    assert found == {"conv1.kernel": None, "conv2.kernel": None, **dense}


FOUND = {
    "transposed": lambda w, b, x: x @ w.T + b[None],
    "cast": lambda w, b, x: x @ w.astype(jnp.float32).astype(jnp.float64) + b[None],
    "reshaped": lambda w, b, x: x @ w.reshape(9)[None].squeeze(0).reshape(3, 3) + b[None],
}


@pytest.mark.parametrize("name", FOUND)
def test_a_weight_may_be_laid_out_anew(name):
    params = {"w": normal(3, 3), "b": normal(3)}
    f = lambda p, x: FOUND[name](p["w"], p["b"], x[0])[None]  # noqa: E731
    assert layers_of(f, params, normal(2, 3, 3)) == {"w": "b"}


def test_all_factors_between_product_and_bias_count():
    w, b, x = normal(3, 2), normal(2), normal(1, 3)
    program = trace_program(lambda p, x: 3.0 * (x @ p[0]) * 2.0 / 4.0 + p[1][None], [w, b], x)
    (layer,) = find_layers(program, 2)
    assert (layer.bias, float(layer.scale)) == (1, 1.5)
    rows = layer.inputs(eval_program(program, [w, b, x], {})[1])
    np.testing.assert_allclose(rows, [[*(1.5 * x[0]), 1]], rtol=1e-14)


NHWC, NCHW, MIXED = (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IOHW", "CWNH"))


@pytest.mark.parametrize(
    ("stride", "spread", "hole", "pad", "layout"),
    [(1, 1, 1, 0, NHWC), (2, 1, 2, 1, MIXED), (2, 2, 1, 2, NCHW)],
)
def test_inputs_and_cotangents_make_the_gradient_of_any_convolution(
    stride, spread, hole, pad, layout
):
    """Up to the order of the weight's entries, so their squares and inner products are compared."""
    sizes = {"N": 1, "H": 7, "W": 6, "C": 2, "I": 2, "O": 3}
    kernel = sizes | {"H": 3, "W": 2}
    x = normal(*(sizes[axis] for axis in layout[0]))
    weight = normal(*(kernel[axis] for axis in layout[1]))

    def f(w, x):
        steps, pads, spreads = (stride, 1), [(pad, 1), (0, pad)], ((1, spread), (hole, 1))
        return jax.lax.conv_general_dilated(x, w, steps, pads, *spreads, layout)

    program = trace_program(lambda leaves, x: f(leaves[0], x), [weight], x)
    (layer,) = find_layers(program, 1)
    out, pull = jax.vjp(lambda w: f(w, x), weight)
    u = jax.random.normal(KEY, (4, *out.shape))
    expected = np.stack([np.ravel(pull(v)[0]) for v in u])
    values = eval_program(program, [weight, x], {})[1]
    rows = np.einsum("sd,ose->ode", layer.inputs(values), layer.cotangents(u)).reshape(4, -1)
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, rtol=1e-11)
    np.testing.assert_allclose(np.sort(rows), np.sort(expected), atol=1e-12)
