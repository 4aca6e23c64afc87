"""States on disk: written whole or not at all, and refused where they belong to another run."""

import json
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from iterlin.training.files import replaced
from iterlin.training.identity import Identity, plain

FORMAT = "iterlin checkpoint 2"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message names the file and what to do."""


def save(path: Path, tree: PyTree, *, identity: Identity, notes: dict | None = None) -> None:
    """Write the leaves of a pytree and JSON notes; the file is the old one or the new one.

    Raises CheckpointError if it cannot be written (disk full, folder not writable): what lay there
    before is intact.
    """
    path = Path(path)
    leaves = [plain(leaf) for leaf in jax.tree.leaves(tree)]
    head = {"format": FORMAT, "notes": notes or {}, **identity.head()}
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
    path: Path, like: PyTree, *, identity: Identity, notes: Collection[str] = ()
) -> tuple[PyTree, dict] | None:
    """The pytree (of the structure of `like`) and the notes; None if there is no such file.

    Leaves of JAX in `like` are to be of their shape and type, those of NumPy may be of any. `notes`
    are those that the file must have, all of them numbers.

    Raises CheckpointError if the file is a folder, is damaged or no checkpoint, or was written by
    another run: the message names what differs.
    """
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(f"the checkpoint {path} is a folder: give the name of a file")
    if not path.exists():
        return None
    arrays, head = _read(path, identity)
    refused, hint = f"the checkpoint {path} holds another state", "delete it to start anew"
    expected, structure = jax.tree.flatten(like)
    names = [f"leaf{index}" for index in range(len(expected))]
    if arrays.keys() != {"head", *names}:
        raise CheckpointError(f"{refused}: {hint}")
    restored = []
    for leaf, other in zip((arrays[name] for name in names), expected, strict=True):
        wanted = plain(other) if isinstance(other, jax.Array) else leaf
        if leaf.dtype.kind == "V" and leaf.dtype.itemsize == wanted.dtype.itemsize:
            leaf = leaf.view(wanted.dtype)  # bfloat16, say, which NumPy's format does not name
        if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
            there, here = f"{leaf.dtype} {leaf.shape}", f"{wanted.dtype} {wanted.shape}"
            raise CheckpointError(f"{refused}, {there} in the place of {here}: {hint}")
        restored.append(_restored(leaf, other))
    kept = head.get("notes")
    if not isinstance(kept, dict) or not all(isinstance(kept.get(n), int | float) for n in notes):
        listed = "".join(f" {name}" for name in notes)
        raise CheckpointError(f"the checkpoint {path} lacks its notes{listed}: {hint}")
    return jax.tree.unflatten(structure, restored), kept


def _read(path: Path, identity: Identity) -> tuple[dict[str, np.ndarray], dict]:
    """Arrays and head of a run's file; CheckpointError for any other file."""
    hint = "delete it to start anew"
    try:
        arrays = dict(_arrays(path))
        head = json.loads(arrays["head"].tobytes())
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint {path} is damaged ({reason}): {hint}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no '{FORMAT}': {hint}")
    if unlike := identity.differences(head):
        listed = ", ".join(unlike)
        raise CheckpointError(
            f"the checkpoint {path} belongs to another run: it differs in {listed}: {hint}"
        )
    return arrays, head


def _arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of an .npz. No header is believed: an array is as large as its bytes in the file,
    which are not compressed."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
            with archive.open(entry) as member:
                np.lib.format.read_magic(member)
                shape, by_columns, dtype = np.lib.format.read_array_header_1_0(member)
                flat = np.frombuffer(member.read(), dtype)
            array = flat.reshape(shape, order="F" if by_columns else "C")
            yield entry.filename.removesuffix(".npy"), array


def file_of(path: Path, identity: Identity) -> Path:
    """Return the run's file: the path itself, or a file in it if it is a folder."""
    return file_in(path, identity) if path.is_dir() else path


def file_in(folder: Path, identity: Identity) -> Path:
    """The run's file in a folder of many: one that `load` accepts, or the name for a new one.

    The name has the digest of the settings, by which the file of another version is found, and that
    of the programs, so that runs that differ in these alone have a file each.
    """
    settings, programs = identity.names()
    own = Path(folder) / f"{settings[:24]}-{programs[:8]}.npz"
    if not own.exists():
        for path in sorted(own.parent.glob(f"{settings[:24]}-*.npz")):
            try:
                _read(path, identity)
            except CheckpointError:
                continue
            return path
    return own


def _restored(array: np.ndarray, like):
    if isinstance(like, jax.Array) and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return jax.numpy.asarray(array) if isinstance(like, jax.Array) else array
