"""Small problems that the tests share: networks, and affine ones with any Jacobian."""

import functools
import inspect
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from iterlin import cached_ntk, empirical_ntk, losses, mlp, ntk_matrix
from iterlin.exact import linear_model
from iterlin.exact.flow import Objective
from iterlin.linearise.parameters import combine, partition
from iterlin.networks.convolution import conv2d

CASES = {  # examples, outputs, parameters, rank: N O < P, = P, > P, and rank deficient
    "wide": (3, 2, 11, 6),
    "square": (4, 2, 8, 8),
    "tall": (6, 2, 5, 5),
    "deficient wide": (4, 2, 12, 5),
    "deficient tall": (6, 2, 7, 3),
}


def affine(params, x):
    """f(params, x)_no = sum_p x_nop params_p: its Jacobian is x, flattened to (N O, P)."""
    return jnp.einsum("nop,p->no", x, params)


def with_singular_values(values, examples, outputs, parameters, seed=0):
    """x (N, O, P) of an `affine` problem whose Jacobian has the given non-zero singular values."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(examples * outputs, examples * outputs)))[0]
    right = np.linalg.qr(rng.normal(size=(parameters, parameters)))[0]
    rank = len(values)
    matrix = left[:, :rank] * np.asarray(values) @ right[:rank]
    return jnp.asarray(matrix.reshape(examples, outputs, parameters))


def affine_problem(case, seed=0, low=0.3):
    """params, x, y of an affine problem of that shape and rank, singular values in [low, 1]."""
    examples, outputs, parameters, rank = CASES[case] if isinstance(case, str) else case
    x = with_singular_values(np.geomspace(1, low, rank), examples, outputs, parameters, seed)
    rng = np.random.default_rng(seed + 1)
    params = jnp.asarray(rng.normal(size=parameters))
    return params, x, jnp.asarray(rng.normal(size=(examples, outputs)))


@functools.cache
def network(widths=(3, 5, 2), seed=0, examples=4, activation="tanh"):
    """f, params, x, y of a small smooth network."""
    model = mlp(widths, activation=activation)
    x, y = (normal(examples, widths[end], seed=seed - 9 * end) for end in (0, -1))
    return model.apply, start(model.init, seed), x, y


def start(init, seed=0):
    """Parameters as `init(key)` makes them: weights by their fan-in, vectors a tenth as large.

    NumPy draws them. JAX would compile a program for each shape.
    """
    rng = np.random.default_rng(seed)

    def drawn(leaf):
        scale = np.sqrt(leaf.shape[-1] / leaf.size) if leaf.ndim > 1 else 0.1
        return jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(drawn, jax.eval_shape(init, jax.random.key(0)))


def by_factor(params):
    """An `init` that takes the parameters times a number of its key, which compiles soon."""
    return jax.jit(lambda key: jax.tree.map(lambda p: p * (0.5 + jax.random.uniform(key)), params))


def normal(*shape, seed=0):
    """Standard normal numbers, the same for each shape and seed."""
    return jnp.asarray(np.random.default_rng(sum(shape) + seed).normal(size=shape))


def convolutional(images, size, channels, features, method="auto"):
    """f, params, x of a convolution of images of `size` x `size`, with a bias of its own."""
    params = {"w": normal(3, 3, channels, features), "b": normal(features)}
    params |= {"out": normal(features, 3)}

    def f(p, x):
        h = conv2d(x, p["w"], padding="SAME", method=method) + p["b"][None, None, None]
        return jnp.tanh(h).sum((1, 2)) @ p["out"]

    return f, params, normal(images, size, size, channels)


def quartic(outputs, targets):
    """A convex loss that the library does not know."""
    return jnp.sum((outputs - targets) ** 4)


def single(tree):
    """The tree with its floating point arrays in single precision."""

    def cast(leaf):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(np.asarray(leaf, np.float32)) if floating else leaf

    return jax.tree.map(cast, tree)


def flat(tree):
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def dense(f, params, x):
    """The Jacobian (N O, P) by forward mode through the whole batch: another route."""
    return np.asarray(_forward_mode(f, params, x))


@functools.partial(jax.jit, static_argnums=0)
def _forward_mode(f, params, x):
    vector, unravel = jax.flatten_util.ravel_pytree(params)
    return jax.jacfwd(lambda p: f(unravel(p), x).reshape(-1))(vector)


# Of the kernel (N1, N2, O, O) by pairs of examples and of outputs.
FORMS = {"full": "ijoq->ijoq", "matrix": "ijoq->iojq", "diagonal": "ijoo->ijo", "trace": "ijoo->ij"}


def dense_kernel(f, params, x1, x2=None, trainable=None):
    """J(x1) J(x2)^T as (N1, N2, O, O), of the parameters that are trained."""
    moving, fixed = partition(jax.tree.map(jnp.asarray, params), trainable)

    def rows(x):
        found = dense(lambda moving, x: f(combine(moving, fixed), x), moving, x)
        return found.reshape(len(jax.tree.leaves(x)[0]), -1, found.shape[1])

    first = rows(x1)
    return np.einsum("iop,jqp->ijoq", first, first if x2 is None else rows(x2))


def assert_forms(f, params, x, other=None, *, forms, trainable=None, **settings):
    """Require each form of the kernel to be the dense one's, to 1e-12 of its largest entry."""
    full = dense_kernel(f, params, x, other, trainable)
    pairs, out = full.shape[:2], jax.eval_shape(f, params, x).shape[1:]
    matrix = full.shape[0] * full.shape[2], full.shape[1] * full.shape[3]
    shapes = {"full": pairs + out + out, "diagonal": pairs + out, "trace": pairs, "matrix": matrix}
    for form in forms:
        asked = {form: True} if form in ("trace", "diagonal") else {}
        kernel = ntk_matrix if form == "matrix" else empirical_ntk
        found = kernel(f, params, x, other, trainable=trainable, **asked, **settings)
        expected = np.einsum(FORMS[form], full).reshape(shapes[form])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(full).max())


def linearised(loss, *, penalty=0.0, space="function"):
    """The problem of a small network's linearisation, and f, params, x, y.

    In function space by its kernel, in parameter space by products with J. y holds labels where
    the loss is a cross-entropy.
    """
    f, params, x, y = network((3, 6, 4), examples=12)
    y = y if losses.as_sum(loss) is losses.squared_error else jnp.argmax(y, 1)
    if space == "function":
        model = linear_model.from_kernel(f, params, x, cached_ntk(f, params, x).product)
    else:
        model = linear_model.from_products(f, params, x)
    return Objective(model, loss, y, penalty), f, params, x, y


def assert_same_run(found, expected, tolerance=0.0):
    """Require two runs (state, history) to agree in all that the second has recorded.

    To the bit, if there is no tolerance.
    """
    (state, history), (other, reference) = found, expected
    equal = functools.partial(np.testing.assert_allclose, atol=tolerance)
    equal = equal if tolerance else np.testing.assert_array_equal
    for name in ("params", "anchor", "step", "updates", "anchored_at", "converged_at"):
        equal(*(flat(getattr(s, name)) for s in (state, other)), err_msg=name)
    for name in reference.keys() - {"seconds"}:
        equal(history[name], reference[name], err_msg=name)


def bare(function):
    """The function without the checks of types and shapes that tests add: it meets bad input."""
    return inspect.unwrap(function)


def paired(out=(), seed=0, examples=5):
    """f, params, x, y of a smooth network of two inputs, with outputs of any shape."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(out))
    widths = {"a": 3, "b": 2}
    x = {name: jnp.asarray(rng.normal(size=(examples, n))) for name, n in widths.items()}
    first = {name: jnp.asarray(rng.normal(size=(n, 3))) for name, n in widths.items()}
    params = {"in": first, "out": jnp.asarray(rng.normal(size=(3, size)))}

    def f(params, x):
        hidden = jnp.tanh(x["a"] @ params["in"]["a"] + x["b"] @ params["in"]["b"])
        return (hidden @ params["out"]).reshape(-1, *out)

    return f, params, x, jnp.asarray(rng.normal(size=(examples, *out)))


@contextmanager
def compilations():
    """Names of the functions that are compiled within the block."""
    found, counting = [], True

    def listen(event, duration, **details):
        if counting and event == "/jax/core/compile/backend_compile_duration":
            found.append(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        counting = False
