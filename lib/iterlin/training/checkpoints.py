"""Checkpoints: write them atomically, and refuse to resume from one of another run."""

import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.linearise.devices import to_array
from iterlin.linearise.digests import DIGEST_PREFIX, digest, to_numpy
from iterlin.training.files import atomic_write
from iterlin.training.identity import Identity, differences

FORMAT = "iterlin checkpoint 4"
# The remedy in each message on a file that is refused.
START_ANEW = "name another file, or delete this one, to start anew"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. The message names the file and the remedy."""


def save(path: Path, tree: PyTree, *, identity: Identity) -> None:
    """Write a checkpoint atomically: an .npz file with the leaves of a pytree and the identity.

    Raises CheckpointError if the file cannot be written (disk full, folder not writable). The
    previous checkpoint is then intact.
    """
    path = Path(path)
    leaves = [to_numpy(leaf) for leaf in jax.tree.leaves(tree)]
    head = {"format": FORMAT, "identity": dict(identity)}
    named: dict[str, Any] = {f"leaf{index}": leaf for index, leaf in enumerate(leaves)}
    try:
        # An open file, because NumPy appends ".npz" to a name that lacks it.
        with atomic_write(path) as partial, open(partial, "wb") as file:
            np.savez(file, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **named)
    except OSError as error:
        before = "the one before it is intact" if path.exists() else "there is none before it"
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; {before}. "
            "Free space or make the folder writable, and start again: the run goes on from there"
        ) from error


def load(path: Path, like: PyTree, *, identity: Identity) -> PyTree | None:
    """Read the tree that the same run has written; None if there is no such file.

    `like` has the structure of the tree. In the place of a JAX array or its shape the file must
    have an array of that shape and dtype; in that of a number or NumPy array it may have any, which
    comes back as a NumPy array.
    Raises CheckpointError if the file is damaged, is not a checkpoint, or was written by another
    run; the message names what differs.
    """
    path = Path(path)
    if not path.exists():
        return None
    arrays = _read(path, identity)
    refused = f"the checkpoint {path} holds another state"
    expected, structure = jax.tree.flatten(like)
    names = [f"leaf{index}" for index in range(len(expected))]
    if arrays.keys() != {"head", *names}:
        raise CheckpointError(f"{refused}: {START_ANEW}")
    restored = []
    for leaf, other in zip((arrays[name] for name in names), expected, strict=True):
        wanted = to_numpy(other) if isinstance(other, jax.Array) else leaf
        if isinstance(other, jax.ShapeDtypeStruct):  # of no key
            wanted = other
        if leaf.dtype.kind == "V" and leaf.dtype.itemsize == wanted.dtype.itemsize:
            leaf = leaf.view(wanted.dtype)  # NumPy's format cannot name bfloat16 and its like
        if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
            there, here = f"{leaf.dtype} {leaf.shape}", f"{wanted.dtype} {wanted.shape}"
            raise CheckpointError(f"{refused}, {there} in the place of {here}: {START_ANEW}")
        restored.append(_restored(leaf, other))
    return jax.tree.unflatten(structure, restored)


def _read(path: Path, identity: Identity) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint of the run, or raise CheckpointError."""
    try:
        with open(path, "rb") as file, np.load(file) as archive:
            arrays = dict(archive)
        head = json.loads(arrays["head"].tobytes())
    except Exception as error:  # a damaged file fails in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not zipfile.is_zipfile(path):
            reason = "or another file: it is no .npz archive"
        raise CheckpointError(
            f"the checkpoint {path} is damaged ({reason}): {START_ANEW}"
        ) from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not an '{FORMAT}': {START_ANEW}")
    if differing := differences(head["identity"], identity):
        listed = ", ".join(differing)
        raise CheckpointError(
            f"the checkpoint {path} belongs to another run: it differs in {listed}: {START_ANEW}"
        )
    return arrays


def path_in_folder(folder: Path, identity: Identity) -> Path:
    """Return the checkpoint file of a run in a folder that many runs share."""
    found = digest(np.frombuffer(json.dumps(dict(identity), sort_keys=True).encode(), np.uint8))
    return Path(folder) / f"{found.removeprefix(DIGEST_PREFIX)[:32]}.npz"


def _restored(array: np.ndarray, like: Any) -> Any:
    """Return an array of a file as `like` is: a PRNG key, a JAX array or a NumPy array."""
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return array
    if isinstance(like, jax.Array) and jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return to_array(array)
