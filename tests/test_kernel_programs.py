"""A kernel is of the network as it is now, compiled once for a structure, and keeps nothing."""

import gc
import weakref
from collections import namedtuple
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import eigenmodes, empirical_ntk, ntk
from iterlin.kernels import compiled
from iterlin.kernels.flat_program import Operation, flatten
from iterlin.kernels.structure import structure
from iterlin.linearization import jacobian
from test_compilations import compilations


def normal(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


X, W = normal(4, 3), {"w": normal(3, 5), "v": normal(5, 2)}
NEGATIVE = jax.tree.map(jnp.negative, W)
GLOBAL = SimpleNamespace(array=normal(3), number=2.0)


def of_globals(p, x):
    return jnp.tanh((x * GLOBAL.array[None]) @ p["w"] * GLOBAL.number) @ p["v"]


def with_a_rule(p, x):
    return jax.nn.relu(x @ p["w"] + 0.1) @ p["v"] * GLOBAL.number


def expected(f, params, x):
    rows = jacobian(f, params, x)
    return np.trace((rows @ rows.T).reshape(len(x), -1, len(x), 2), axis1=1, axis2=3)


def assert_trace(f, params=W, x=X):
    found = empirical_ntk(f, params, x, trace=True)
    np.testing.assert_allclose(found, expected(f, params, x), rtol=1e-11)


@pytest.mark.parametrize("f", [of_globals, with_a_rule])
def test_changed_globals_are_seen(monkeypatch, f):
    assert_trace(f)
    monkeypatch.setattr(GLOBAL, "number", 3.0)
    assert_trace(f)
    monkeypatch.setattr(GLOBAL, "array", normal(4)[1:])
    assert_trace(f)


class Module:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, p, x):
        return jax.nn.relu(x @ p["w"] * self.scale) @ p["v"]


def closure(scale):
    return lambda p, x: jnp.tanh(x @ p["w"] * scale) @ p["v"]


@pytest.mark.optimized
def test_the_same_function_compiles_once_whatever_it_closes_over(monkeypatch):
    """Also a method, which is another object at each look; and a new function without rules."""
    module = Module(normal(5)[None])
    calls = {
        "function": lambda: with_a_rule,
        "method": lambda: module.apply,
        "closures": lambda: closure(normal(5)[None]),
    }
    for kind, f in calls.items():
        empirical_ntk(f(), W, X, trace=True)
        monkeypatch.setattr(module, "scale", 2 * module.scale)
        other = f()
        with compilations() as found:
            kernel = empirical_ntk(other, NEGATIVE, X, trace=True)
        assert not found, kind
        np.testing.assert_allclose(kernel, expected(other, NEGATIVE, X), rtol=1e-11)


@pytest.mark.optimized
def test_eigenmodes_from_the_kernel_compile_it_once_for_a_network_with_fixed_parameters():
    def modes():
        settings = {"trainable": lambda name: name == "w", "memory_limit": 900}
        return eigenmodes(with_a_rule, W, X, jnp.ones((4, 2)), **settings).singular_values

    first = modes()
    with compilations() as found:
        second = modes()
    assert not {"outputs", "factors_of"} & set(found)
    np.testing.assert_array_equal(first, second)


def test_functions_with_rules_of_their_own_share_no_program():
    """The operations of these are the same, their derivatives are not."""

    def ruled(factor):
        @jax.custom_jvp
        def twice(h):
            return 2 * h

        twice.defjvp(lambda p, t: (twice(*p), factor * t[0]))
        return lambda p, x: twice(x @ p["w"]) @ p["v"]

    for factor in (2.0, 5.0):
        assert_trace(ruled(factor))


@pytest.mark.parametrize("kind", ["closure", "rule", "method"])
def test_nothing_is_kept_of_a_function_that_is_dropped(kind):
    scale = normal(5)[None] + 1
    if kind == "method":
        owner = Module(scale)
        f = owner.apply
    else:
        act = jax.nn.relu if kind == "rule" else jnp.tanh
        f = owner = lambda p, x: act(x @ p["w"] * scale) @ p["v"]
    empirical_ntk(f, W, X, trace=True)
    array, function = weakref.ref(scale), weakref.ref(owner)
    del scale, owner, f
    gc.collect()
    assert array() is None
    assert function() is None


def test_a_function_that_its_own_rule_holds_stays_until_others_take_its_place(monkeypatch):
    monkeypatch.setattr(compiled, "MOST", 2)

    class Held(Module):
        def apply(self, p, x):
            @jax.custom_vjp
            def act(h):
                return jnp.tanh(h)

            act.defvjp(lambda h: (act(h), h), lambda h, g: (g * self.scale,))
            return act(x @ p["w"]) @ p["v"]

    held = Held(normal(5)[None])
    found = weakref.ref(held)
    empirical_ntk(held.apply, W, X, trace=True)
    del held
    assert found() is not None
    empirical_ntk(closure(normal(5)[None]), W, X, trace=True)
    gc.collect()
    assert found() is None


def test_programs_of_a_dropped_function_go_with_it():
    def f(p, x):
        return jax.nn.relu(x @ p["w"] * 7) @ p["v"]

    before = len(compiled._programs)
    empirical_ntk(f, W, X)
    assert len(compiled._programs) == before + 2  # for a batch of one and of two
    del f
    gc.collect()
    assert len(compiled._programs) == before


def test_no_more_programs_than_so_many_are_kept(monkeypatch):
    assert f"of which {compiled.MOST} are kept" in " ".join(ntk.__doc__.split())
    monkeypatch.setattr(compiled, "MOST", 3)

    def look(power):
        empirical_ntk(lambda p, x: (x @ p["w"]) ** power @ p["v"], W, X[:1])
        return list(compiled._programs)

    *_, kept = (look(power) for power in (2, 3, 4))
    assert len(kept) == 3
    assert look(3) == [kept[0], kept[2], kept[1]]
    assert look(5)[:2] == [kept[2], kept[1]]


def test_under_transformations():
    """Traced, and closing over what is traced: as for each value by itself."""

    def total(params, scale):
        def f(p, x):
            return jax.nn.relu(x @ p["w"] * scale) @ p["v"]

        return jnp.sum(empirical_ntk(f, params, X, trace=True))

    before = list(compiled._programs)
    scales = jnp.asarray([1.0, 2.0])
    single = jnp.stack([jax.jit(total)(W, scale) for scale in scales])
    np.testing.assert_allclose(jax.vmap(total, (None, 0))(W, scales), single, rtol=1e-12)
    _, scanned = jax.lax.scan(lambda c, s: (c, total(W, s)), 0.0, scales)
    np.testing.assert_allclose(scanned, single, rtol=1e-12)
    slope = jax.jit(jax.grad(total, 1))
    # Of degree two in the scale: through the derivatives of v and of w.
    np.testing.assert_allclose(slope(W, scales[1]), 2 * slope(W, scales[0]), rtol=1e-12)
    np.testing.assert_allclose(single[1], 4 * single[0], rtol=1e-12)
    assert list(compiled._programs) == before  # which would keep tracers


def test_under_jit_with_nothing_traced():
    run = jax.jit(lambda: empirical_ntk(with_a_rule, W, X, trace=True))
    np.testing.assert_allclose(run(), expected(with_a_rule, W, X), rtol=1e-11)


def looped(step):
    """step(h, number) at each entry."""
    return lambda x: jax.lax.scan(lambda h, v: (step(h, v), h), x[0, 0], x[0])[1]


def solved(factor):
    def f(x):
        return jax.lax.custom_linear_solve(lambda v: factor * v, x, lambda _, b: b / factor)

    return f


# Made anew of a number, these differ by it, in an operation or inside a setting of one.
MADE = {
    "literal": lambda number: lambda x: x + number,
    "argument": lambda number: lambda x: x.sum(axis=int(number) - 2, keepdims=True),
    "loop": lambda number: looped(lambda h, v: jnp.sin(h) * number),
    "order in a loop": lambda number: looped(lambda h, v: h - v if number == 2 else v - h),
    "branches": lambda number: (
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda h: h - number, x)
    ),
    "call in a loop": lambda number: looped(jax.checkpoint(lambda h, v: jnp.sin(h) / number)),
    "solve": solved,
}


@pytest.mark.parametrize("kind", MADE)
def test_programs_share_a_key_where_nothing_but_closed_over_arrays_differs(kind):
    def key(number, array):
        found, complete = structure(flatten(lambda x: MADE[kind](number)(x * array), X))
        assert complete
        return found

    first, again = key(2.0, X), key(2.0, 2 * X)
    assert first == again
    assert hash(first) == hash(again)
    assert first != key(3.0, X)
    assert first != key(2.0, X.astype(jnp.float32))


@pytest.mark.parametrize(
    "f",
    [
        jax.nn.relu,
        looped(lambda h, v: jax.nn.relu(h)),
        lambda x: jax.debug.callback(print, x) or jnp.sin(x),
        looped(jax.checkpoint(jnp.add, policy=jax.checkpoint_policies.dots_saveable)),
    ],
    ids=["rule", "rule in a loop", "callback", "policy"],
)
def test_a_key_does_not_tell_all_where_functions_are_among_the_settings(f):
    assert structure(flatten(f, X))[1] is False


def scaled(array):
    return jax.make_jaxpr(lambda x: x * array)(1.0)


PAIR, COUPLE = namedtuple("PAIR", "a b"), namedtuple("COUPLE", "a b")


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: [1, [2.0]], [1, [3.0]]),
        (lambda: {"a": [1], "b": (2,)}, {"a": [1], "b": (3,)}),
        (lambda: np.asarray([0.0, np.nan]), np.asarray([-0.0, np.nan])),
        (lambda: (jnp.asarray([1, 2]),), (jnp.asarray([1, 3]),)),
        (lambda: PAIR([1], 2), COUPLE([1], 2)),
        (lambda: scaled(np.arange(3.0)), scaled(np.arange(1.0, 4))),
        (lambda: float, int),
    ],
    ids=["list", "dict", "array", "array in a tuple", "names", "jaxpr", "type"],
)
def test_settings_of_any_kind_are_compared_by_what_they_hold(make, other):
    plain = flatten(jnp.sin, X)
    primitive = plain.operations[0].equation.primitive

    def key(setting):
        equation = SimpleNamespace(primitive=primitive, params={"setting": setting})
        return structure(plain._replace(operations=(Operation(equation, (0,), (1,)),)))

    assert key(make()) == key(make())
    assert key(make())[1] is True
    assert key(make()) != key(other)
    assert key({1}) != key({1})  # cannot be hashed, and may change
