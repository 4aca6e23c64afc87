"""SHA-256 of arrays, and of compiled programs with the arrays that they hold."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

# The address of an object in memory changes from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
DIGEST_PREFIX = "sha256:"


def digest(*trees: PyTree) -> str:
    """Return "sha256:" and the SHA-256 of pytrees: their structures, shapes, dtypes and entries."""
    found = hashlib.sha256()
    for tree in trees:
        leaves, structure = jax.tree.flatten(tree)
        found.update(_ADDRESS.sub("", str(structure)).encode())
        for leaf in map(to_numpy, leaves):
            found.update(f"{leaf.shape}{leaf.dtype}".encode())
            found.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return DIGEST_PREFIX + found.hexdigest()


def to_numpy(leaf: Any) -> np.ndarray:
    """Return a leaf as a NumPy array; a typed PRNG key as its raw uint32 words."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def program_key(program: ClosedJaxpr | Jaxpr) -> tuple | None:
    """Return a key of what a program computes and where; None if it calls Python functions back.

    What such functions read and write is not part of the program.
    """
    text = _text(program)
    return None if "callback" in text else (program_digest(program, text), device_ids(program.eqns))


def device_ids(equations: Iterable[JaxprEqn]) -> tuple[int, ...]:
    """Return the devices of the meshes in a program, which its text does not tell."""
    found: list[int] = []
    for equation in equations:
        for part in jax.tree.leaves(equation.params):
            part = getattr(part, "mesh", part)  # of a sharding
            if isinstance(part, jax.sharding.Mesh) and not part.empty:
                found += [device.id for device in part.devices.flat]
            elif isinstance(part, ClosedJaxpr | Jaxpr):
                found += device_ids(part.eqns)
    return tuple(found)


def program_digest(program: ClosedJaxpr | Jaxpr, text: str | None = None) -> str:
    """Return "sha256:" and the SHA-256 of the text of a program and of every array constant in it.

    A Python function that the program calls back is known by its name alone. text: the text of the
    program, if the caller has it: to print it takes milliseconds.
    """
    text = _text(program) if text is None else text
    parts = _ADDRESS.sub("", text).encode() + _constants(program, {})
    return DIGEST_PREFIX + hashlib.sha256(parts).hexdigest()


def _text(program: ClosedJaxpr | Jaxpr) -> str:
    return program.pretty_print(use_color=False)  # in a notebook str() would add colours


def _constants(part: Any, known: dict[int, bytes]) -> bytes:
    """Return the SHA-256 of the array constants in a part of a program, in their order."""
    if id(part) in known:
        return known[id(part)]
    if hasattr(part, "__array__"):
        return digest(part).encode()
    if isinstance(part, ClosedJaxpr) and not isinstance(part, Jaxpr):
        inner = [*part.consts, part.jaxpr]
    elif isinstance(part, Jaxpr):  # from JAX 0.11 on with its own constants
        inner = [*getattr(part, "consts", ())]
        inner += [v.val for v in part.outvars if isinstance(v, Literal)]
        for equation in part.eqns:
            inner += [v.val for v in equation.invars if isinstance(v, Literal)]
            inner += equation.params.values()
    elif isinstance(part, list | tuple):
        inner = part
    elif isinstance(part, dict):
        inner = part.values()
    else:
        return b""
    found = hashlib.sha256(b"".join(_constants(one, known) for one in inner)).digest()
    if isinstance(part, Jaxpr):  # a program may hold the same jaxpr in many places
        known[id(part)] = found
    return found
