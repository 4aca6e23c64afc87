"""What tells a run from others: named parts, so that a refused checkpoint can say what differs.

The text of a program changes with the version of JAX. Between versions the first numbers that a run
computes are compared in the place of its programs. They do not show when a schedule of the user's
own says yes.
"""

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import metadata
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from iterlin.linearise.validation import as_python
from iterlin.training.state import TrainState

VERSION = (
    f"JAX {jax.__version__}, optax {optax.__version__}, iterlin {metadata.version('iterlin')}, "
    f"Python {'.'.join(platform.python_version_tuple()[:2])}"
)
PARAMETERS, STEP = "the first parameters", "the step (network, loss, optimiser or schedule)"
RECORDED = "what is recorded"
# How far first numbers may be apart between versions, relative to their norm.
TOLERANCE = 1e-3
# Where an object lies in memory is no part of what a program computes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DIGEST = "sha256:"


@dataclass(frozen=True)
class Identity:
    """What tells a run from others, by the names that an error message gives the parts.

    Args:
        settings: Numbers, texts and digests (`digest`). They must agree.
        programs: Digests of compiled functions (`program_digest`). They must agree if the other run
            was one of this `VERSION`.
        first: Returns numbers that the run computes first. Between versions they must agree to
            `TOLERANCE`, and stand for the programs, and for settings of the same name.
    """

    settings: Mapping[str, Any]
    programs: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[], Mapping[str, list[float]]] = field(default_factory=lambda: dict)

    @cached_property
    def numbers(self) -> Mapping[str, list[float]]:
        return self.first()

    def prepare(self) -> None:
        """Compute the first numbers now, while there is room in memory for a second state."""
        _ = self.numbers

    def head(self) -> dict[str, Any]:
        """All parts, as JSON can hold them."""
        parts = {name: dict(getattr(self, name)) for name in ("settings", "programs", "numbers")}
        return {"version": VERSION, **parts}

    def names(self) -> tuple[str, str]:
        """Digests of the settings, and of the programs with their version."""
        parts = dict(self.settings), [dict(self.programs), VERSION]
        settings, programs = (digest(json.dumps(part, sort_keys=True)) for part in parts)
        return settings.removeprefix(_DIGEST), programs.removeprefix(_DIGEST)

    def differences(self, head: Mapping[str, Any]) -> list[str]:
        """The parts in which the run with this `head` is another one, in words."""
        theirs = {name: part if isinstance(part, dict) else {} for name, part in head.items()}
        kept, wanted, numbers = theirs.get("settings", {}), self.settings, {}
        if head.get("version") == VERSION:
            kept, wanted = kept | theirs.get("programs", {}), {**wanted, **self.programs}
        else:
            numbers = self.numbers
        unlike = [
            _in_words(name, kept.get(name), wanted.get(name))
            for name in {**wanted, **kept}
            if name not in numbers and kept.get(name) != wanted.get(name)
        ]
        known = theirs.get("numbers", {})
        unlike += [name for name, here in numbers.items() if not _agree(known.get(name), here)]
        if unlike and head.get("version") != VERSION:
            unlike.append(_in_words("version", head.get("version"), VERSION))
        return unlike


def _in_words(name: str, there, here) -> str:
    if any(isinstance(value, str) and value.startswith(_DIGEST) for value in (there, here)):
        return name
    return f"{name} ({there}, here {here})"


def _agree(kept, here: list[float]) -> bool:
    numbers = isinstance(kept, list) and all(isinstance(value, int | float) for value in kept)
    if not numbers or len(kept) != len(here):
        return False
    a, b = np.asarray(kept, float), np.asarray(here, float)
    finite = np.isfinite(b)
    apart = np.linalg.norm(a[finite] - b[finite])
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    return bool(same and apart <= TOLERANCE * np.linalg.norm(b[finite]))


def plain_fields(**objects) -> dict[str, Any]:
    """Attributes of objects that are single numbers or texts: {"period of the schedule": 10}."""
    return {
        f"{name} of the {of}": as_python(value)
        for of, found in objects.items()
        for name, value in getattr(found, "__dict__", {}).items()
        if isinstance(as_python(value), int | float | str | None)
    }


def start_of(state: TrainState, fixed: PyTree, data, sets, looks: np.ndarray) -> dict[str, Any]:
    """`Identity.settings` of any run: what it starts from, and when it is looked at."""
    rest = state._replace(params=None, anchor=None, key=None)
    return {
        "num_steps": int(looks[-1]),
        "the steps looked at": digest(np.asarray(looks)),
        "the data": digest(data),
        "the watched sets": digest(dict(sets)),
        PARAMETERS: digest((state.params, state.anchor, fixed)),
        "the key": digest(state.key),
        "the rest of the first state": digest(rest),
    }


def first_numbers(
    state: TrainState, fixed: PyTree, step: Callable, observe: Callable
) -> dict[str, list[float]]:
    """`Identity.first` of training: the parameters, where step(state) leads, and what is recorded
    of the first state. The step may take over the buffers of its argument."""
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
    """The norm of all leaves together, and their sum with signs that are as if drawn."""
    squared = signed = 0.0
    for index, leaf in enumerate(map(_floats, jax.tree.leaves(tree))):
        squared += np.vdot(leaf, leaf)
        drawn = (np.arange(leaf.size) + 7919 * index) * 2654435761 >> 16 & 1
        signed += np.vdot(leaf, 1 - 2.0 * drawn)
    return [float(np.sqrt(squared)), float(signed)]


def _floats(leaf) -> np.ndarray:
    return plain(leaf).astype(np.float64).ravel()


def digest(*trees: PyTree) -> str:
    """SHA-256 of arrays, and of how they are nested."""
    found = hashlib.sha256()
    for tree in trees:
        leaves, structure = jax.tree.flatten(tree)
        found.update(str(structure).encode())
        for leaf in map(plain, leaves):
            found.update(f"{leaf.shape}{leaf.dtype}".encode())
            found.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
    return _DIGEST + found.hexdigest()


def plain(leaf) -> np.ndarray:
    """A leaf as NumPy holds it; random keys by their bits."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def program_digest(programs: Iterable[ClosedJaxpr]) -> str:
    """SHA-256 of the text of programs and of every array that they hold, at any depth.

    Of a Python function that a program calls back, the code and the numbers and arrays that it
    closes over are included; its globals, and objects and lists that it closes over, are not.
    """
    found = hashlib.sha256()
    for program in programs:
        # str() of a jaxpr has colours in a notebook kernel.
        text = program.pretty_print(use_color=False)
        found.update(_ADDRESS.sub("", text).encode() + _held(program, {}))
    return _DIGEST + found.hexdigest()


def _held(part, known: dict[int, bytes]) -> bytes:
    """SHA-256 of the arrays in a part of a program, in their order."""
    if id(part) in known:
        return known[id(part)]
    if hasattr(part, "__array__"):
        return digest(part).encode()
    if isinstance(part, ClosedJaxpr):
        inner = [*part.consts, part.jaxpr]
    elif isinstance(part, Jaxpr):
        inner = [v.val for v in part.outvars if isinstance(v, Literal)]
        for equation in part.eqns:
            inner += [v.val for v in equation.invars if isinstance(v, Literal)]
            settings = dict(equation.params)
            inner += [_called(settings.pop("callback", None)), *settings.values()]
    elif isinstance(part, list | tuple):
        inner = part
    elif isinstance(part, dict):
        inner = part.values()
    else:
        return part if isinstance(part, bytes) else b""
    found = hashlib.sha256(b"".join(_held(one, known) for one in inner)).digest()
    if isinstance(part, Jaxpr):  # it lives as long as the program, and may be in many places
        known[id(part)] = found
    return found


def _called(value, depth: int = 9):
    """A Python function as nested tuples of arrays and bytes."""
    value = getattr(value, "callback_func", value)
    if isinstance(value, FunctionType):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        inner = value.__code__, value.__defaults__, value.__kwdefaults__, cells
    elif isinstance(value, CodeType):
        inner = value.co_code, value.co_names, value.co_consts
    elif isinstance(value, MethodType):
        inner = value.__func__, value.__self__
    elif isinstance(value, partial):
        inner = value.func, value.args, *value.keywords.items()
    elif isinstance(value, tuple):
        inner = value
    elif hasattr(value, "__array__"):
        return value
    else:
        whole = isinstance(value, int | float | complex | str | bytes | None)
        return repr(value if whole else type(value)).encode()
    return tuple(_called(one, depth - 1) for one in inner) if depth else ()
