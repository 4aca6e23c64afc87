"""`train`, `train_sweep` and `Problem` from one flat set of settings each.

The tests change settings one by one; here each finds its place: with the algorithm, with what is
watched, or with the run.
"""

import dataclasses
import math

import iterlin
import jax
from iterlin import Algorithm, Watch
from iterlin_study.runs import grids
from iterlin_study.runs.groups import Problem
from problems import bare

OF_ALGORITHM = {field.name for field in dataclasses.fields(Algorithm)}
OF_WATCH = {"evaluate": "sets", "metrics": "metrics", "eval_steps": "at"}


def sorted_out(f, settings, make=Algorithm):
    """(algorithm, watch, the rest)."""
    algorithm = {n: v for n, v in settings.items() if n in OF_ALGORITHM}
    if "step_size" in settings:
        algorithm["optimizer"] = settings["step_size"]
    watch = {OF_WATCH[n]: v for n, v in settings.items() if n in OF_WATCH and v is not None}
    taken = {*algorithm, *OF_WATCH, "step_size"}
    rest = {n: v for n, v in settings.items() if n not in taken}
    return make(f, **algorithm), Watch(**watch), rest


def unchecked(f, **settings):
    """An algorithm that meets bad input without the checks of types that tests add."""
    made = object.__new__(Algorithm)
    defaults = {field.name: field.default for field in dataclasses.fields(Algorithm)}
    for name, value in {**defaults, "programs": {}, "f": f, **settings}.items():
        object.__setattr__(made, name, value)
    bare(Algorithm.__post_init__)(made)
    return made


def train(f, params, data, **settings):
    algorithm, watch, rest = sorted_out(f, settings)
    return iterlin.train(algorithm, params, data, watch=watch, **rest)


def train_sweep(f, init, data, **settings):
    algorithm, watch, rest = sorted_out(f, settings)
    return iterlin.train_sweep(algorithm, init, data, watch=watch, **rest)


def problem(f, init, train, **settings):
    algorithm, watch, rest = sorted_out(f, settings)
    return Problem(algorithm, init, train, watch, **rest)


def doors(algorithm, init, data, watch, schedule=2):
    """A short run through each call that trains."""
    keys, steps = jax.random.split(jax.random.key(0)), {"num_steps": 4, "watch": watch}
    params, run = init(keys[0]), steps | {"schedule": schedule}
    sweep = steps | {"periods": [2], "keys": keys, "schedule": lambda period: schedule}
    group = Problem(algorithm, init, data, watch)
    return [
        *(
            lambda engine=engine: iterlin.train(algorithm, params, data, engine=engine, **run)
            for engine in ("steps", "auto", "flow")
        ),
        lambda: iterlin.train_sweep(algorithm, init, data, **sweep),
        lambda: grids.run_all(group, [grids.Run(0, math.inf, 0.1, (0, 4), schedule=schedule)]),
    ]
