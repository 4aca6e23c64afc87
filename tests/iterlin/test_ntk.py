"""The empirical kernel is J J^T by every route and within any memory bound."""

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import empirical_ntk, in_slices, kernel_alignment, kernel_drift, ntk_product
from iterlin.kernels import blocks, factors, ntk
from iterlin_study.networks import convnets
from jax import lax
from problems import FORMS, affine, assert_forms, bare, dense_kernel, network, normal, single
from refusals import refused

compiled_ntk = jax.jit(empirical_ntk, static_argnums=0)


def test_kernel_equals_products_of_dense_jacobians():
    f, params, x, _ = network()
    assert_forms(f, params, x, 2 * x[:3] - 1, forms=FORMS)
    expected = dense_kernel(f, params, x)
    np.testing.assert_allclose(compiled_ntk(f, params, x), expected, atol=1e-13)
    np.testing.assert_allclose(empirical_ntk(f, params, x[:1]), expected[:1, :1], atol=1e-13)
    kernel = compiled_ntk(f, *single((params, x)))
    assert kernel.dtype == jnp.float32
    np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-5)


def scanned(p, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["layers"])[0] @ p["w"]


def convolved(x, w):
    layout = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=layout)


def residual(p, x):
    h = convolved(x[:, :, None], p["w"])
    return (h + convolved(jnp.tanh(h), p["v"])).sum(1)


def squares(x):
    """Three positions of three numbers."""
    return x[:, :, None] * x[:, None]


W, B = normal(3, 3), normal(3)
# Of a weight w and a vector b, of which some use one alone, or of other parameters.
ANYTHING = {
    "shared weight": lambda p, x: jnp.tanh(x @ p["w"]) @ p["w"].T,
    "used nonlinearly, in part": lambda p, x: x[:, :2] @ jnp.exp(p["w"])[1:] * p["b"][None] ** 2,
    "unused leaf": lambda p, x: x @ p["w"],
    "residual": residual,
    "scan": scanned,
    "relaid": lambda p, x: (p["w"].T.reshape(9)[::-1].reshape(3, 3) @ x.T).T,
    "positions": lambda p, x: jnp.tanh(squares(x) @ p["w"] + p["b"][None, None]).sum(1),
    "on the left": lambda p, x: jnp.tanh(jnp.einsum("ab,nbc->nac", p["w"], squares(x))).sum(1),
    "a bias for all features": lambda p, x: jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"],
    "more biases than products": lambda p, x: jnp.tanh(
        x[:, None] @ p["w"] + jnp.broadcast_to(p["b"], (1, 5, 3))
    ).sum(1),
    "remembered less": lambda p, x: jax.checkpoint(lambda h: jnp.tanh(h @ p["w"]))(x) @ W,
    "batched": lambda p, x: jnp.einsum("ni,ij->nij", x, p["w"]).sum(1),
    "in two parts": lambda p, x: jnp.hstack([x @ part for part in jnp.split(p["w"], [2], 1)]),
    "repeated": lambda p, x: jnp.einsum("ni,ijk->nj", x, jnp.repeat(p["w"][..., None], 2, axis=2)),
    "through integers": lambda p, x: x @ p["w"].astype(int).astype(float),
    "a number that all features share": lambda p, x: x @ p["w"] + jnp.tile(p["b"], (1, 3)),
    "a branch": lambda p, x: lax.cond(
        p["b"][0] > 9, lambda: x, lambda: jax.jit(jnp.tanh)(x @ p["w"])
    ),
    # There relu's own rule (0) and that of the maximum in it (1/2) differ.
    "relu at zero": lambda p, x: jax.nn.relu(x @ (p["w"] - lax.stop_gradient(p["w"]))) + x @ p["w"],
}
OTHERS = {
    "residual": {"w": normal(2, 1, 3), "v": normal(3, 3, 3)},
    "scan": {"layers": normal(2, 3, 3), "w": W},
    "a bias for all features": {"w": W, "b": B[:1], "v": W},
    "a number that all features share": {"w": W, "b": B[:1]},
}

# Of one example (3, 3). A bias is added to each feature of a product; with as many positions as
# features its shape alone does not tell it from another vector.
BIASES = {
    "of a transposed weight": lambda w, b, x: x @ w.T + b[None],
    "of a weight on the left": lambda w, b, x: (w @ x.T).T + b[None],
    "product used again": lambda w, b, x: (h := x @ w) + b[None] + jnp.sin(h),
    "along positions": lambda w, b, x: x @ w + b[:, None],
    "factor": lambda w, b, x: b[None] * (x @ w),
    "a part of it": lambda w, b, x: x @ w + jnp.broadcast_to(b[:1], 3)[None],
    "of its inverse": lambda w, b, x: 2.0 / (x @ w) + b[None],
    "behind known factors": lambda w, b, x: 3.0 * (x @ w) * 2.0 / 4.0 + b[None],
    "of a cast weight": lambda w, b, x: x @ w.astype("float32").astype("float64") + b[None],
    "of a reshaped weight": lambda w, b, x: x @ w.reshape(9)[None].reshape(3, 3) + b[None],
    "behind an unknown factor": lambda w, b, x: (x @ w) * x.sum() + b[None],
    "behind a factor for each feature": lambda w, b, x: (x @ w) * np.arange(1.0, 4)[None] + b[None],
}


@pytest.mark.parametrize("name", [*ANYTHING, *BIASES])
def test_any_use_of_parameters_gives_the_products_of_dense_jacobians(name):
    def biased(p, x):
        return jnp.stack([jnp.tanh(BIASES[name](p["w"], p["b"], e)).sum(0) for e in x])

    f, shape = (biased, (2, 3, 3)) if name in BIASES else (ANYTHING[name], (5, 3))
    assert_forms(f, OTHERS.get(name, {"w": W, "b": B}), normal(*shape), forms=("full",))


NHWC, NCHW, MIXED = (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IOHW", "CWNH"))


@pytest.mark.parametrize(
    ("stride", "spread", "hole", "pad", "layout"),
    [(1, 1, 1, 0, NHWC), (2, 1, 2, 1, MIXED), (2, 2, 1, 2, NCHW)],
)
def test_any_convolution_gives_the_products_of_dense_jacobians(stride, spread, hole, pad, layout):
    sizes = {"N": 1, "H": 7, "W": 6, "C": 2, "I": 2, "O": 3}
    kernel = sizes | {"H": 3, "W": 2}
    steps, pads, spreads = (stride, 1), [(pad, 1), (0, pad)], ((1, spread), (hole, 1))

    def f(w, x):
        found = [lax.conv_general_dilated(e, w, steps, pads, *spreads, layout) for e in x]
        return jnp.stack([jnp.tanh(each).ravel()[::9] for each in found])

    weight, x = normal(*map(kernel.get, layout[1])), normal(2, *map(sizes.get, layout[0]))
    assert_forms(f, weight, x, forms=("full",))


@pytest.mark.parametrize(
    ("size", "channels", "features", "kind", "method"),
    [(2, 8, 16, "positions", "patches"), (6, 2, 2, "rows", "direct")],
)
def test_convolution_takes_the_cheaper_of_two_right_ways(size, channels, features, kind, method):
    """4 positions with 72 x 16 weights take less time by positions; 36 with 18 x 2 by rows."""
    f, params, x = problems.convolutional(4, size, channels, features, method)
    network = ntk.trace_network(f, params, x)
    found = network.factors(x, jnp.arange(3), form="full", count=4)
    assert {name for name in found._fields if getattr(found, name)} == {"dense", kind}
    assert_forms(f, params, x, forms=("full", "trace", "diagonal"))


def test_lenet():
    settings = {"channels": 3, "kernel_size": 3, "hidden": (5,), "classes": 3}
    model = convnets.lenet((12, 12, 1), method="patches", **settings)
    params = problems.start(model.init)
    assert_forms(in_slices(model.apply, 2), params, normal(3, 12, 12, 1), forms=["full"])


def rows_of(x, outputs):
    return factors.Factors([], [], [jnp.einsum("nop,qo->nqp", x, outputs)])


@drawn.at_most(5)
@given(
    drawn.shapes([(1, 1, 1, 1), (6, 4, 3, 4), (5, 6, 2, 2), (4, 3, 1, 9)], 6, 6, 4, 9),
    st.booleans(),
    st.sampled_from(sorted(FORMS)),
)
def test_groups_of_any_size_change_nothing(sizes, two_sided, form):
    """The assembly alone, from rows that are given: no network to compile."""
    n1, n2, outputs, group = sizes
    first, second = normal(n1, outputs, 7), normal(n2, outputs, 7)
    basis = jnp.eye(outputs)
    side = (second, basis) if two_sided else None
    expected = np.einsum("iop,jqp->ijoq", first, second if two_sided else first)
    found = blocks.assemble_kernel(rows_of, (first, basis), side, group, form, first.dtype)
    np.testing.assert_allclose(found, np.einsum(FORMS[form], expected), atol=1e-13)


@pytest.mark.parametrize("form", ["matrix", "trace"])
def test_overlapping_blocks_of_a_group_change_nothing(monkeypatch, form):
    """7 examples in blocks of 3: from 0, 3 and 4."""
    monkeypatch.setattr(blocks, "LEAST_ROWS", 5)
    monkeypatch.setattr(blocks, "BLOCKS", 3)
    rows = normal(7, 2, 5)
    found = blocks.assemble_kernel(rows_of, (rows, jnp.eye(2)), None, 7, form, rows.dtype)
    expected = np.einsum(FORMS[form], np.einsum("iop,jqp->ijoq", rows, rows))
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_kernels_of_several_parameters_at_once():
    """The layer's inputs are the same for all of these, its cotangents are not."""
    weights, x = normal(2, 3, 3), normal(5, 3)
    f = lambda w, x: jnp.tanh(x @ w) @ W  # noqa: E731
    found = jax.vmap(lambda w: empirical_ntk(f, w, x, trace=True))(weights)
    expected = [np.einsum("ijoo->ij", dense_kernel(f, w, x)) for w in weights]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("limit", "two_sided"), [(208, False), (400, True), (1500, True)])
def test_blocks_within_a_memory_limit_change_nothing(limit, two_sided):
    """One output, all three, or several examples at a time."""
    f, params, x, _ = network((2, 3, 3), examples=5)
    other = 1 - x[:3] if two_sided else None
    assert_forms(f, params, x, other, forms=("full", "matrix", "trace"), memory_limit=limit)


F, PARAMS, X, _ = network()
KERNEL, WHOLE = bare(empirical_ntk), jax.tree.map(lambda p: p.astype(int), PARAMS)
test_bad_input_is_refused_by_name = refused(
    lambda call: call(),
    (lambda: KERNEL(F, PARAMS, X, memory_limit=1), "memory_limit of 1 bytes"),
    (lambda: KERNEL(F, PARAMS, X[:0]), "x1 must hold an example"),
    (lambda: KERNEL(F, PARAMS, X, X[:, 1:]), "examples of x2 must be shaped as those"),
    (lambda: KERNEL(F, WHOLE, X), "to train, of"),
    (lambda: KERNEL(lambda p, x: (F(p, x), 0), PARAMS, X), "f must return one array"),
    (lambda: KERNEL(F, PARAMS, {"a": X, "b": X[:2]}), "differ in their numbers of examples"),
    (lambda: KERNEL(F, PARAMS, X, X > 0), "x1 and x2 must be of one kind"),
    (lambda: KERNEL(F, PARAMS, X, trace=True, diagonal=True), "trace and diagonal"),
    (lambda: bare(kernel_alignment)(jnp.eye(2), jnp.ones(2)), r"k2 must have shape \(2, 2\)"),
)


def test_examples_of_two_types():
    """Within one kind both are of the wider type, whichever comes first."""
    net, params, x, _ = network()
    f = lambda p, x: net(p, jnp.sin(x))  # noqa: E731  (of the narrower type it is another)
    narrow = x.astype(jnp.bfloat16)
    expected = dense_kernel(f, params, narrow.astype(x.dtype), x)
    np.testing.assert_allclose(empirical_ntk(f, params, narrow, x), expected, atol=1e-13)
    flipped = empirical_ntk(f, params, x, narrow).transpose(1, 0, 3, 2)
    np.testing.assert_allclose(flipped, expected, atol=1e-13)


@given(drawn.shapes([(3, 2, 9), (3, 2, 6), (5, 3, 4)], 5, 3, 9), st.integers(0, 99))
def test_kernel_product_and_matrix_agree(shape, seed):
    examples, outputs, parameters = shape
    rank = min(examples * outputs, parameters)
    params, x, v = problems.affine_problem((examples, outputs, parameters, rank), seed)
    jacobian = np.asarray(x).reshape(-1, parameters)
    matrix = ntk.kernel_matrix(empirical_ntk(affine, params, x))
    np.testing.assert_allclose(matrix, jacobian @ jacobian.T, atol=1e-13)
    product = ntk_product(affine, params, x)(v)
    np.testing.assert_allclose(np.ravel(product), jacobian @ (jacobian.T @ np.ravel(v)), atol=1e-13)
    whole = ntk_product(affine, params, x)(np.ones(v.shape, int))
    np.testing.assert_allclose(np.ravel(whole), matrix.sum(1), atol=1e-13)


def test_alignment_and_drift():
    kernel = normal(3, 3, 2, 2)
    assert float(kernel_alignment(kernel, 3 * kernel)) == pytest.approx(1, rel=1e-12)
    assert float(kernel_alignment(kernel, -kernel)) == pytest.approx(-1, rel=1e-12)
    orthogonal = jnp.asarray([[1.0, 0.0], [0.0, 0.0]]), jnp.asarray([[0.0, 0.0], [0.0, 2.0]])
    assert float(kernel_alignment(*orthogonal)) == 0
    assert float(kernel_drift(kernel, kernel)) == 0
    assert float(kernel_drift(kernel, 1.5 * kernel)) == pytest.approx(0.5, rel=1e-12)
    assert float(kernel_drift(kernel, -kernel)) == pytest.approx(2, rel=1e-12)
    half = jnp.full((2, 2), 300, jnp.float16)  # whose squares float16 does not hold
    assert float(kernel_alignment(half, half)) == pytest.approx(1)
    assert float(kernel_drift(half, 2 * half)) == pytest.approx(1)
    integers = np.full((2, 2), 100, np.uint8)  # whose squares uint8 does not hold
    assert float(bare(kernel_alignment)(integers, integers)) == pytest.approx(1)
    assert float(bare(kernel_drift)(integers, integers // 2)) == pytest.approx(0.5)


def test_a_kernel_has_a_derivative_by_a_fixed_parameter():
    x = jnp.arange(6.0).reshape(3, 2)

    def total(scale):  # scale^2 times the sum of x x^T
        params = {"moving": jnp.ones(2), "scale": scale}
        f = lambda p, x: p["scale"] * (x @ p["moving"])  # noqa: E731
        return jnp.sum(empirical_ntk(f, params, x, trainable=lambda path: path == "moving"))

    np.testing.assert_allclose(jax.grad(total)(3.0), 6 * jnp.sum(x @ x.T), rtol=1e-12)


def test_uneven_parts_of_the_outputs_agree_on_rows_and_positions():
    """Of 3 outputs, parts of 2 and 1 would by themselves choose differently."""
    rng = np.random.default_rng(0)
    shapes = {"e": (2000, 16), "w": (16, 32), "b": (32,), "v": (32, 3)}
    params = {name: jnp.asarray(rng.normal(size=shape)) / 4 for name, shape in shapes.items()}
    tokens = jnp.asarray(rng.integers(0, 2000, (4, 8)))

    def f(p, t):
        return jnp.tanh(p["e"][t] @ p["w"] + p["b"][None, None]).mean(1) @ p["v"]

    kernel = empirical_ntk(f, params, tokens, memory_limit=1_280_000)
    np.testing.assert_allclose(kernel, empirical_ntk(f, params, tokens), rtol=1e-10)
