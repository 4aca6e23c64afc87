"""What tells a run from others: named parts, so that a refused checkpoint can name what differs."""

import platform
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from iterlin.linearise.digests import DIGEST_PREFIX, digest
from iterlin.linearise.validation import as_python
from iterlin.training.state import TrainState
from iterlin.version import __version__

# Numbers, texts and digests by the names that error messages use. JSON must be able to hold them.
Identity = Mapping[str, Any]
# The text of a program, and the last bits of what it computes, change with these.
VERSION = (
    f"JAX {jax.__version__}, optax {optax.__version__}, iterlin {__version__}, "
    f"Python {'.'.join(platform.python_version_tuple()[:2])}"
)
STEP, RECORDED = "the step (network, loss, optimiser or schedule)", "what is recorded"
LENGTH = (NUM_STEPS := "num_steps", LOOKS := "the steps looked at")


def start_settings(
    state: TrainState, fixed: PyTree, data: PyTree, sets: PyTree, looks: np.ndarray
) -> dict[str, Any]:
    """Return the parts that every run has: all but its programs and what its objects hold.

    state: the first state. data: all that the run trains on. looks: the recorded steps, (T,).
    """
    rest = state._replace(params=None, anchor=None, key=None)
    return {
        "version": VERSION,
        NUM_STEPS: int(looks[-1]),
        LOOKS: digest(np.asarray(looks)),
        "the data": digest(data),
        "the watched sets": digest(dict(sets)),
        "the first parameters": digest((state.params, state.anchor, fixed)),
        "the key": digest(state.key),
        "the rest of the first state": digest(rest),
    }


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


def differences(kept: Identity, wanted: Identity) -> list[str]:
    """Return the parts in which two runs differ, in words.

    A run may go on with another number of steps, and then at other looks (`LENGTH`).
    """
    free = LENGTH if kept.get(NUM_STEPS) != wanted.get(NUM_STEPS) else ()
    return [
        _describe(name, kept.get(name), wanted.get(name))
        for name in {**wanted, **kept}
        if name not in free and kept.get(name) != wanted.get(name)
    ]


def _describe(name: str, there: Any, here: Any) -> str:
    """Return the name of a part and its two values, which are left out if they are digests."""
    if any(isinstance(value, str) and value.startswith(DIGEST_PREFIX) for value in (there, here)):
        return name
    return f"{name} ({there}, here {here})"
