"""States on disk: written whole or not at all, and refused where they belong to another run."""

import hashlib
import json
import re
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from iterlin.runtime.files import replaced

FORMAT = "iterlin checkpoint 1"
# Where an object lies in memory is no part of what a program computes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message names the file and what to do."""


def save(path: Path, tree: PyTree, *, fingerprint: str, notes: dict | None = None) -> None:
    """Write the leaves of a pytree and JSON notes; the file is the old one or the new one.

    Raises CheckpointError if it cannot be written (disk full, folder not writable): what lay there
    before is intact.
    """
    path = Path(path)
    leaves = [_plain(leaf) for leaf in jax.tree.leaves(tree)]
    head = {"format": FORMAT, "fingerprint": fingerprint, "notes": notes or {}}
    named = {f"leaf{index}": leaf for index, leaf in enumerate(leaves)}
    try:
        # A file, not its name: to a name without ".npz" NumPy adds it.
        with replaced(path) as partial, open(partial, "wb") as file:
            np.savez(file, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **named)
    except OSError as error:
        before = "the one before it is intact" if path.exists() else "there is none before it"
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; {before}. "
            "Free space or make the folder writable, and start again: the run goes on from there"
        ) from error


def load(
    path: Path, like: PyTree, *, fingerprint: str, notes: Collection[str] = ()
) -> tuple[PyTree, dict] | None:
    """The pytree (of the structure of `like`) and the notes; None if there is no such file.

    Leaves of JAX in `like` are to be of their shape and type, those of NumPy may be of any. `notes`
    are those that the file must have, all of them numbers.

    Raises CheckpointError if the file is a folder, is damaged or no checkpoint, or was written by a
    run with another fingerprint.
    """
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(f"the checkpoint {path} is a folder: give the name of a file")
    if not path.exists():
        return None
    hint = "delete it to start anew"
    try:
        # Opened here: np.load leaves a damaged file open.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            head = json.loads(file["head"].tobytes())
            leaves = [file[f"leaf{index}"] for index in range(len(file.files) - 1)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint {path} is damaged ({reason}): {hint}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no '{FORMAT}': {hint}")
    if head.get("fingerprint") != fingerprint:
        raise CheckpointError(f"the checkpoint {path} belongs to a run with other settings: {hint}")
    expected, structure = jax.tree.flatten(like)
    if len(expected) != len(leaves):
        raise CheckpointError(f"the checkpoint {path} holds another state: {hint}")
    for leaf, other in zip(leaves, expected, strict=True):
        wanted = _plain(other) if isinstance(other, jax.Array) else leaf
        if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(
                f"the checkpoint {path} holds another state, {leaf.dtype} {leaf.shape} in the "
                f"place of {wanted.dtype} {wanted.shape}: {hint}"
            )
    kept = head.get("notes")
    if not isinstance(kept, dict) or not all(isinstance(kept.get(n), int | float) for n in notes):
        listed = "".join(f" {name}" for name in notes)
        raise CheckpointError(f"the checkpoint {path} lacks its notes{listed}: {hint}")
    restored = [_restored(leaf, other) for leaf, other in zip(leaves, expected, strict=True)]
    return jax.tree.unflatten(structure, restored), kept


def fingerprint(programs: Iterable[Any], *trees: PyTree) -> str:
    """SHA-256 of programs (jaxprs, with the arrays they close over; or texts) and of arrays.

    Two runs agree in it if they apply the same operations to the same numbers, whatever the
    settings were called; a change anywhere in what is computed makes another run of it.
    """
    digest = hashlib.sha256()
    for program in programs:
        # str() of a jaxpr has colours in a notebook kernel.
        text = program if isinstance(program, str) else program.pretty_print(use_color=False)
        digest.update(_ADDRESS.sub("", text).encode())
        for constant in getattr(program, "consts", ()):
            _add(digest, constant)
    for tree in trees:
        leaves, structure = jax.tree.flatten(tree)
        digest.update(str(structure).encode())
        for leaf in leaves:
            _add(digest, leaf)
    return digest.hexdigest()


def _add(digest, leaf) -> None:
    array = np.ascontiguousarray(_plain(leaf))
    digest.update(f"{array.shape}{array.dtype}".encode())
    digest.update(array.tobytes())


def _plain(leaf) -> np.ndarray:
    """A leaf as NumPy holds it; random keys by their bits."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _restored(array: np.ndarray, like):
    if isinstance(like, jax.Array) and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return jax.numpy.asarray(array) if isinstance(like, jax.Array) else array
