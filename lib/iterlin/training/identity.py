"""The identity of a run: named parts, so that a refused checkpoint can name what differs.

The text of a compiled program changes with the version of JAX. Between two versions the first
numbers that a run computes are compared instead of its programs. These numbers do not show at which
later steps a user's own schedule re-linearises.
"""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from iterlin.linearise.digests import DIGEST_PREFIX, digest, to_numpy
from iterlin.linearise.validation import as_python
from iterlin.training.state import TrainState
from iterlin.version import __version__

VERSION = (
    f"JAX {jax.__version__}, optax {optax.__version__}, iterlin {__version__}, "
    f"Python {'.'.join(platform.python_version_tuple()[:2])}"
)
PARAMETERS, STEP = "the first parameters", "the step (network, loss, optimiser or schedule)"
RECORDED = "what is recorded"
LENGTH = (NUM_STEPS := "num_steps", LOOKS := "the steps looked at")
# Largest relative difference of first numbers between versions.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Identity:
    """The parts that distinguish a run from others, under the names used in error messages.

    Args:
        settings: Numbers, texts and digests (`digest`). They must be equal, except for `LENGTH`: a
            run may go on with another number of steps, and then at other looks.
        programs: Digests of compiled functions (`program_digest`). They must be equal if the other
            run has the same `VERSION`.
        first: first() -> the first numbers that the run computes. Between versions these are
            compared to `TOLERANCE`, instead of the programs and of settings of the same name.
    """

    settings: Mapping[str, Any]
    programs: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[], Mapping[str, list[float]]] = field(default_factory=lambda: dict)

    @cached_property
    def numbers(self) -> Mapping[str, list[float]]:
        """The first numbers that the run computes, by name."""
        return self.first()

    def prepare(self) -> None:
        """Compute the first numbers now, while memory has room for a second state."""
        _ = self.numbers

    def head(self) -> dict[str, Any]:
        """Return the version and all parts, as JSON can hold them."""
        parts = {name: dict(getattr(self, name)) for name in ("settings", "programs", "numbers")}
        return {"version": VERSION, **parts}

    def names(self) -> tuple[str, str]:
        """Return a digest of the settings, and one of the programs and the version."""
        parts = dict(self.settings), [dict(self.programs), VERSION]
        settings, programs = (digest(json.dumps(part, sort_keys=True)) for part in parts)
        return settings.removeprefix(DIGEST_PREFIX), programs.removeprefix(DIGEST_PREFIX)

    def differences(self, head: Mapping[str, Any]) -> list[str]:
        """Return the parts in which the run of another `head` differs from this one, in words."""
        theirs = {name: part if isinstance(part, dict) else {} for name, part in head.items()}
        kept, wanted, numbers = theirs.get("settings", {}), self.settings, {}
        if head.get("version") == VERSION:
            kept, wanted = kept | theirs.get("programs", {}), {**wanted, **self.programs}
        else:
            numbers = self.numbers
        free = LENGTH if kept.get(NUM_STEPS) != wanted.get(NUM_STEPS) else ()
        differing = [
            _describe(name, kept.get(name), wanted.get(name))
            for name in {**wanted, **kept}
            if name not in (*numbers, *free) and kept.get(name) != wanted.get(name)
        ]
        known = theirs.get("numbers", {})
        differing += [n for n, here in numbers.items() if not _agree(known.get(n), here)]
        if differing and head.get("version") != VERSION:
            differing.append(_describe("version", head.get("version"), VERSION))
        return differing


def _describe(name: str, there: Any, here: Any) -> str:
    """Return the name of a part and its two values, which are left out if they are digests."""
    if any(isinstance(value, str) and value.startswith(DIGEST_PREFIX) for value in (there, here)):
        return name
    return f"{name} ({there}, here {here})"


def _agree(kept: Any, here: list[float]) -> bool:
    """Return whether numbers of a file agree with those of this run, to `TOLERANCE`."""
    numbers = isinstance(kept, list) and all(isinstance(value, int | float) for value in kept)
    if not numbers or len(kept) != len(here):
        return False
    a, b = np.asarray(kept, float), np.asarray(here, float)
    finite = np.isfinite(b)
    distance = np.linalg.norm(a[finite] - b[finite])
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    return bool(same and distance <= TOLERANCE * np.linalg.norm(b[finite]))


def scalar_fields(**objects: Any) -> dict[str, Any]:
    """Return the attributes of objects that are numbers or texts.

    They are named as {"max_period of the schedule": 10}.
    """
    return {
        f"{name} of the {of}": as_python(value)
        for of, found in objects.items()
        for name, value in getattr(found, "__dict__", {}).items()
        if isinstance(as_python(value), int | float | str | None)
    }


def start_settings(
    state: TrainState, fixed: PyTree, data: PyTree, sets: PyTree, looks: np.ndarray
) -> dict[str, Any]:
    """Return the settings that every run has for its `Identity`.

    state: the first state. data: all that the run trains on. looks: the recorded steps, (T,).
    """
    rest = state._replace(params=None, anchor=None, key=None)
    return {
        NUM_STEPS: int(looks[-1]),
        LOOKS: digest(np.asarray(looks)),
        "the data": digest(data),
        "the watched sets": digest(dict(sets)),
        PARAMETERS: digest((state.params, state.anchor, fixed)),
        "the key": digest(state.key),
        "the rest of the first state": digest(rest),
    }


def first_numbers(
    state: TrainState, fixed: PyTree, step: Callable, observe: Callable
) -> dict[str, list[float]]:
    """Return the first numbers of a training run for its `Identity`.

    They summarise the first parameters, the change in the first step, and the first metrics. The
    function step(state) may donate the buffers of its argument.
    """
    after = step(jax.tree.map(jnp.copy, state))
    found = {PARAMETERS: summary((state.params, state.anchor, fixed))}
    parts = {
        STEP: (after.params, state.params),
        "the optimiser's first step": (after.optimizer_state, state.optimizer_state),
        "the statistics after a step": (after.statistics, state.statistics),
    }
    for name, (there, here) in parts.items():
        found[name] = summary(jax.tree.map(lambda a, b: _floats(a) - _floats(b), there, here))
    return found | {f"{RECORDED}: {n}": summary(value) for n, value in observe(state).items()}


def summary(tree: PyTree) -> list[float]:
    """Summarise a pytree by the 2-norm of all entries and their sum with pseudo-random signs."""
    squared = signed = 0.0
    for index, leaf in enumerate(map(_floats, jax.tree.leaves(tree))):
        squared += np.vdot(leaf, leaf)
        drawn = (np.arange(leaf.size) + 7919 * index) * 2654435761 >> 16 & 1
        signed += np.vdot(leaf, 1 - 2.0 * drawn)
    return [float(np.sqrt(squared)), float(signed)]


def _floats(leaf: Any) -> np.ndarray:
    """Return the entries of a leaf as a vector of float64."""
    return to_numpy(leaf).astype(np.float64).ravel()
