"""What is shown of a network's operations is so of its numbers."""

import equinox as eqx
import hypothesis.strategies as st
import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from iterlin import independence
from iterlin.independence import shown_independent
from iterlin.networks.convnets import lenet, resnet18
from iterlin.networks.convolution import conv2d
from jax import lax

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 4, 6))
P = jax.random.normal(jax.random.key(1), (6, 6))
WORDS = jnp.array([[0, 3, 1, 5], [2, 2, 4, 0]])


@pytest.fixture(autouse=True)
def _axes_are_added_in_front():
    with jax.numpy_rank_promotion("allow"):
        yield


def apart(f, params, x):
    """f of each example by itself."""
    return jnp.concatenate([f(params, x[i : i + 1]) for i in range(len(x))])


def same(f, params, x):
    return np.allclose(f(params, x), apart(f, params, x), rtol=1e-10, atol=1e-12, equal_nan=True)


def causal(p, x):
    scores = jnp.einsum("nsd,ntd->nst", x @ p, x)
    scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), scores, -jnp.inf)
    return jnp.einsum("nst,ntd->nsd", jax.nn.softmax(scores), x)


@jax.custom_vjp
def cubed(x):
    return x**3


cubed.defvjp(lambda x: (cubed(x), x), lambda x, g: (3 * x**2 * g,))

SHOWN = {
    "elementwise": lambda p, x: jnp.where(x > 0, jnp.tanh(x), lax.clamp(-1.0, x, 1.0) ** 3),
    "a vector added": lambda p, x: x + p[0],
    "a vector added, of its own axes": lambda p, x: x * jnp.arange(6.0) + p[None, :1],
    "of equal values": lambda p, x: x + jnp.full((len(x), 4, 6), 2.0),
    "of equal values that are made": lambda p, x: x - jnp.exp(jnp.zeros((len(x), 1, 6)) + p[0]),
    "broadcast": lambda p, x: jnp.broadcast_to(x[:, None], (len(x), 3, 4, 6)),
    "repeated for each": lambda p, x: jnp.concatenate(
        [jnp.broadcast_to(p[:1], (len(x), 1, 6)), x], axis=1
    ),
    "broadcast of one": lambda p, x: x + jnp.broadcast_to(p[None, :4], (len(x), 4, 6)),
    "flat": lambda p, x: x.reshape(len(x), -1),
    "positions beside examples": lambda p, x: jnp.tanh(x.reshape(-1, 6) @ p).reshape(x.shape),
    "an axis of one before": lambda p, x: x.reshape(1, len(x), 4, 6)[0],
    "an axis of one taken away": lambda p, x: x.reshape(1, len(x), 24).reshape(len(x), 24),
    "transposed": lambda p, x: (p @ x.transpose(2, 0, 1).reshape(6, -1)).reshape(6, -1, 4).sum(2).T,
    "squeezed": lambda p, x: x[:, :1].squeeze(1),
    "reduced": lambda p, x: x.sum(2) * x.max((1, 2))[:, None] - x.mean(1)[:, :4],
    "largest": lambda p, x: jnp.argmax(x, 2) * 1.0,
    "cumulative": lambda p, x: jnp.cumsum(x, 1) + lax.cummax(x, 2),
    "sorted": lambda p, x: jnp.sort(x, 2),
    "split": lambda p, x: jnp.split(x, 2, axis=2)[1],
    "stacked": lambda p, x: jnp.stack([x, 2 * x], 1)[:, 1] + jnp.stack([x, x])[1],
    "reversed": lambda p, x: x[:, ::-1],
    "padded": lambda p, x: jnp.pad(x, ((0, 0), (1, 2), (0, 0))),
    "a part": lambda p, x: x[:, 1:3, ::2],
    "a part, found": lambda p, x: lax.dynamic_slice_in_dim(x, p[0, 0].astype(int), 2, 1),
    "windows": lambda p, x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 2, 1), "VALID"),
    "products": lambda p, x: jnp.einsum("nsd,ntd->nst", x @ p, x),
    "products from the left": lambda p, x: jnp.einsum("ed,nsd->nes", p, x),
    "a convolution": lambda p, x: conv2d(x[..., None], p[:2, :3, None, None], method="direct"),
    "attention": causal,
    "rules of their own": lambda p, x: (
        jax.nn.relu(x) + jax.nn.gelu(x) + jax.nn.logsumexp(x, 1, keepdims=True)
    ),
    "programs": lambda p, x: jax.checkpoint(jax.jit(lambda x: jnp.sin(x) @ p))(x),
    "a reverse rule": lambda p, x: cubed(x) @ p,
    "random numbers that are the same": lambda p, x: x * jax.random.normal(KEY, (4, 6)),
}

NOT_SHOWN = {
    "the mean of the batch": lambda p, x: x - x.mean(0),
    "its sum, as a factor": lambda p, x: x * x.sum(),
    "the largest of the batch": lambda p, x: jnp.argmax(x, 0)[None] * x,
    "cumulative": lambda p, x: jnp.cumsum(x, 0),
    "sorted": lambda p, x: jnp.sort(x, 0),
    "reversed": lambda p, x: x[::-1],
    "rolled": lambda p, x: jnp.roll(x, 1, 0),
    "softmax": lambda p, x: jax.nn.softmax(x, 0),
    "products of examples": lambda p, x: jnp.einsum("nsd,msd->nm", x, x).sum(1)[:, None] * x[:, 0],
    "transposed": lambda p, x: x.reshape(4, len(x), 6).swapaxes(0, 1),
    "positions before examples": lambda p, x: x.reshape(4, 6, -1).transpose(2, 0, 1),
    "another order": lambda p, x: lax.reshape(x, (len(x), 24), (2, 1, 0)),
    "the first one": lambda p, x: jnp.broadcast_to(x[:1], x.shape),
    "the first one for a part": lambda p, x: jnp.concatenate([x[:, :1], x[:1] + 0 * x], 1),
    "padded": lambda p, x: jnp.pad(x, ((1, 0), (0, 0), (0, 0)))[:-1],
    "windows": lambda p, x: lax.reduce_window(x, 0.0, lax.add, (2, 1, 1), (1, 1, 1), "SAME"),
    "random numbers": lambda p, x: x * jax.random.normal(KEY, x.shape),
    "the later half": lambda p, x: x.reshape(-1, 12)[2:],
    "every third of four": lambda p, x: x.reshape(-1, 12)[::3],
    "as many as positions": lambda p, x: x.reshape(-1, 6),
    "its place in the batch": lambda p, x: x * jnp.arange(len(x))[:, None, None],
    "the size of the batch": lambda p, x: x / len(x),
    "another function of one": lambda p, x: 2 * x if len(x) == 1 else x,
    "another function of two": lambda p, x: x + p[0] if len(x) == 1 else x + p[1],
    "a matrix between examples": lambda p, x: jnp.einsum("nm,msd->nsd", p[: len(x), : len(x)], x),
    "convolved along the batch": lambda p, x: (
        lax.conv_general_dilated(
            x.transpose(1, 2, 0), p[:2, None, :1] + jnp.zeros((2, 6, 1)), (1,), ((0, 1),)
        ).sum()
        * x
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_acts_on_each_example_is_shown_to(name):
    assert same(SHOWN[name], P, X)
    assert shown_independent(SHOWN[name], P, X)


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_what_examples_have_of_others_or_of_their_number_is_not_shown(name):
    assert not shown_independent(NOT_SHOWN[name], P, X)


def embedded(p, x):
    return jnp.take(p, x, axis=0) + p[x[:, :1]]


def test_lookups_are_shown_by_the_indices_of_each_example():
    assert same(embedded, P, WORDS)
    assert shown_independent(embedded, P, WORDS)
    assert not shown_independent(lambda p, x: p[x[0]][None] * jnp.ones((len(x), 4, 6)), P, WORDS)
    assert not shown_independent(lambda p, x: x[jnp.array([1, 0]) % len(x)] * 1.0, P, WORDS)


@pytest.mark.parametrize("held", [np.ones((4, 6)), np.arange(24.0).reshape(4, 6)])
def test_arrays_that_a_network_holds_are_known_by_their_numbers(held):
    assert shown_independent(lambda p, x: x * held, P, X)
    assert shown_independent(lambda p, x: x * jnp.asarray(held), P, X)
    assert not shown_independent(lambda p, x: x * (held + len(x)), P, X)


def test_long_arrays_are_known_as_one_object():
    held, x = jnp.ones((60, 60)), jnp.ones((3, 60))
    assert held.nbytes > independence.FEW_BYTES
    assert shown_independent(lambda p, x: x @ held, P, x)
    assert not shown_independent(
        lambda p, x: x @ jnp.asarray(np.array(held)), P, x
    )  # another one each time


NETWORKS = {
    "mlp": (il.mlp((6, 8, 3)), (6,)),
    "patches": (lenet((12, 12, 1), kernel_size=3, channels=4, method="patches"), (12, 12, 1)),
    "blocks": (lenet((12, 12, 1), kernel_size=3, channels=4, method="blocks"), (12, 12, 1)),
    "winograd": (lenet((12, 12, 1), kernel_size=3, channels=4, method="winograd"), (12, 12, 1)),
    "direct": (lenet((12, 12, 1), kernel_size=3, channels=4, method="direct"), (12, 12, 1)),
    "resnet": (resnet18((8, 8, 1), width=4), (8, 8, 1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_of_the_library_are_shown(name):
    model, shape = NETWORKS[name]
    params = jax.eval_shape(model.init, KEY)
    assert shown_independent(model.apply, params, jax.ShapeDtypeStruct((5, *shape), jnp.float64))


def test_a_normalisation_is_shown_where_its_statistics_are_given():
    net = il.from_equinox(
        *eqx.nn.make_with_state(eqx.nn.BatchNorm)(6, axis_name="batch", mode="batch")
    )
    assert not shown_independent(net.f, net.params, X[:, 0])
    assert shown_independent(net.evaluated, net.params, X[:, 0])


def test_nothing_is_computed_and_everything_may_be_traced():
    def call(p, x):
        assert shown_independent(SHOWN["attention"], p, x)
        assert not shown_independent(NOT_SHOWN["softmax"], p, x)
        return jnp.zeros(())

    jax.eval_shape(call, P, X)
    jax.eval_shape(lambda scale: call(P, X) + shown_independent(lambda p, x: scale * x, P, X), 1.0)


def test_inputs_may_be_a_tree_and_outputs_of_any_rank():
    def f(p, x):
        return x["images"].sum(2) * x["scales"]

    x = {"images": X, "scales": jnp.ones((2, 1))}
    assert shown_independent(f, P, x)
    assert shown_independent(lambda p, x: f(p, x)[:, 0], P, x)
    assert not shown_independent(lambda p, x: f(p, x) * x["scales"][::-1], P, x)


# Programs of steps between arrays (N, 4, 6); the last ones mix examples, or may.
STEPS = [
    lambda p, x, y: x + y,
    lambda p, x, y: jnp.tanh(x) * p[:4],
    lambda p, x, y: x @ p,
    lambda p, x, y: jnp.einsum("nsd,ntd->nst", x, y) @ p[:4] / 6,
    lambda p, x, y: (x.reshape(len(x), 6, 4).swapaxes(1, 2) + y) / 2,
    lambda p, x, y: jnp.concatenate([x[:, 2:], y[:, :2]], 1),
    lambda p, x, y: jax.nn.softmax(x, 1) + y.max(2, keepdims=True),
    lambda p, x, y: jnp.broadcast_to(p[None, :4], x.shape) * x,
    lambda p, x, y: jnp.tanh(x.reshape(-1, 6) @ p).reshape(-1, 4, 6),
    lambda p, x, y: jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] - y[:, ::-1],
    lambda p, x, y: x - y.mean(0),
    lambda p, x, y: x[::-1] + y,
    lambda p, x, y: x.reshape(4, -1, 6).swapaxes(0, 1),
    lambda p, x, y: x.reshape(-1, 12).reshape(2, -1, 12).swapaxes(0, 1).reshape(-1, 4, 6),
    lambda p, x, y: x * len(x),
    lambda p, x, y: jnp.concatenate([x, y])[1 : 1 + len(x)],
    lambda p, x, y: x + jnp.arange(len(x))[:, None, None],
    lambda p, x, y: jnp.cumsum(x, 0) - y,
    lambda p, x, y: jnp.concatenate([x.reshape(-1, 6)[:4]] * len(x)).reshape(x.shape),
]
MIXING = 10


@given(st.lists(st.tuples(*[st.integers(0, 2**16)] * 3), min_size=1, max_size=6))
@settings(deadline=None)
def test_what_is_shown_of_any_program_is_so(steps):
    def f(p, x):
        values = [x]
        for step, first, second in steps:
            step = STEPS[step % len(STEPS)]
            values.append(step(p, values[first % len(values)], values[second % len(values)]))
        return values[-1]

    if shown_independent(f, P, X):
        np.testing.assert_allclose(f(P, X), apart(f, P, X), rtol=1e-9, atol=1e-9)
    assert shown_independent(f, P, X) or any(step % len(STEPS) >= MIXING for step, *_ in steps)


@pytest.mark.parametrize(
    "rule", dict.fromkeys(independence.RULES.values()), ids=lambda rule: rule.__name__
)
def test_each_rule_is_needed(rule, monkeypatch):
    """Without it, something above is not shown."""
    kept = {kind: other for kind, other in independence.RULES.items() if other is not rule}
    monkeypatch.setattr(independence, "RULES", kept)
    shown = [shown_independent(f, P, X) for f in SHOWN.values()]
    assert not all([*shown, shown_independent(embedded, P, WORDS)])
