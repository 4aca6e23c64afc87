"""Writes numbers.json: what neural-tangents gives for each row of the page that has an equivalent.

Run it as `python tests/iterlin/from_neural_tangents/make_numbers.py`: it goes on in the environment
that bench/neural_tangents.lock pins, which it makes where there is none.
"""

import json
import os
import sys
from importlib import metadata
from types import ModuleType

import rows

PACKAGES = ("neural-tangents", "jax", "jaxlib", "numpy")


def elsewhere():
    sys.path.insert(0, str(rows.ROOT))
    from bench import environments

    python = environments.interpreter("neural_tangents")
    os.execve(python, [python, __file__, "here"], environments.variables("neural_tangents", 1, {}))


def names():
    # Its bridge to TensorFlow is imported with it; nothing here needs either.
    sys.modules["neural_tangents.experimental"] = ModuleType("neural_tangents.experimental")
    import jax

    jax.config.update("jax_enable_x64", True)
    import neural_tangents as nt
    from neural_tangents import stax

    found = rows.problem()
    layers = (stax.Dense(1), stax.Relu(), stax.Dense(1), stax.Relu(), stax.Dense(1))
    kernel_fn = stax.serial(*layers)[2]
    x, x_test, params = found["x"], found["x_test"], found["params"]
    full = nt.empirical_ntk_fn(rows.f, trace_axes=())
    mean = nt.empirical_ntk_fn(rows.f)
    # NNGP kernels the library here has none of: they are given to it.
    given = {
        "nngp_dd": kernel_fn(x, None, "nngp"),
        "nngp_td": kernel_fn(x_test, x, "nngp"),
        "nngp_tt": kernel_fn(x_test, None, "nngp"),
    }
    kernels = {
        "k_dd": full(x, None, params),
        "k_td": full(x_test, x, params),
        "mean_dd": mean(x, None, params),
        "mean_td": mean(x_test, x, params),
        "kernel_fn": kernel_fn,
    }
    return found | kernels | given | {"nt": nt, "stax": stax}, given


def main():
    every, given = names()

    def plain(array):
        return [plain(part) for part in array] if array.ndim else float(array)

    stored = {
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "given": {name: plain(value) for name, value in given.items()},
        "rows": {old: plain(rows.run(old, every)) for old in rows.read()},
    }
    # A line for each entry.
    parts = [
        f'"{part}": {{\n'
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        + "\n}"
        for part, entries in stored.items()
    ]
    rows.NUMBERS.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        main()
    else:
        elsewhere()
