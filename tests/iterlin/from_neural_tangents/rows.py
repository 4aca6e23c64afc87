"""The rows of the page `appendix/coming_from_neural_tangents`, and a problem to run them on.

Both libraries import this: it needs nothing of either, and draws by PCG64's raw numbers.
"""

import ast
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "book" / "appendix" / "coming_from_neural_tangents.md"
NUMBERS = Path(__file__).with_name("numbers.json")


def read():
    """{what was written: what to write instead}, of the rows that have both in code."""
    found = re.findall(r"^\| `([^`|]+)` \| `([^`|]+)` \|$", PAGE.read_text("utf8"), re.M)
    assert len(dict(found)) == len(found), "a row stands twice"
    return dict(found)


def run(code, names):
    """The value of the last of some statements, parted by semicolons."""
    *first, last = ast.parse(code).body
    names = dict(names)
    exec(compile(ast.Module(first, []), code, "exec"), names)
    return eval(compile(ast.Expression(last.value), code, "eval"), names)


def _drawn(*shape, seed):
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return jnp.asarray((raw / 2.0**63 - 1).reshape(shape))


def _params(seed):
    shapes = {"in": (3, 4), "bias": (4,), "out": (4, 2)}
    return {name: _drawn(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}


def f(params, x):
    return jnp.tanh(x @ params["in"] + params["bias"][None]) @ params["out"]


def g(params, x):
    """Of outputs (N, 2, 2)."""
    return jnp.stack([f(params, x), f(params, 2 * x)], 1)


def problem():
    """The names that both columns of the page use."""
    params, x, x_test = _params(0), _drawn(4, 3, seed=10), _drawn(3, 3, seed=11)
    return {
        "jnp": jnp,
        "f": f,
        "g": g,
        "params": params,
        "theta": _params(20),
        "x": x,
        "x_test": x_test,
        "y": _drawn(4, 2, seed=12),
        "f_d": f(params, x),
        "f_t": f(params, x_test),
        "O": 2,
        "V": 2,
        "t": 3.0,
        "times": jnp.asarray([0.5, 20.0]),
        "eta": 0.7,
        "r": 0.1,
        "s": 1.3,
    }
