"""The files of MNIST and CIFAR-10 as arrays of bytes: IDX, the binary archive, JPEG pictures.

The files have been verified by their SHA-256 (`downloads.fetch`).
"""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
CIFAR_CLASSES += ("dog", "frog", "horse", "ship", "truck")


def read_idx(path: Path) -> np.ndarray:
    """Read the IDX format: 0, 0, 8, the rank, each size as 4 bytes (big-endian), values."""
    content = gzip.decompress(path.read_bytes())
    rank = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def _members(path: Path) -> dict[str, bytes]:
    """Return the contents of the files of a .tar.gz archive by name, without extracting it."""
    with tarfile.open(path, mode="r:gz") as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}


def read_cifar_binary(path: Path) -> tuple[np.ndarray, ...]:
    """Read the official binary version: per image a label, then 1,024 bytes of each colour.

    Returns x (N, 32, 32, 3) and y (N,) of the training set, then those of the test set.
    """
    found = _members(path)

    def batches(names):
        content = b"".join(found[f"cifar-10-batches-bin/{name}.bin"] for name in names)
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), records[:, 0].copy()

    return *batches([f"data_batch_{i}" for i in range(1, 6)]), *batches(["test_batch"])


def read_cifar_jpeg(path: Path) -> tuple[np.ndarray, ...]:
    """Read <any>/{train,test}/<class>/<number>.jpg in that order; returns as `read_cifar_binary`.

    Decoders of JPEG may differ by a grey level.
    """
    from PIL import Image

    found = {"train": {}, "test": {}}
    for name, content in _members(path).items():
        part, label, file = ("", "", "", *name.split("/"))[-3:]
        if part in found and file.endswith(".jpg"):
            pixels = np.asarray(Image.open(io.BytesIO(content), formats=("JPEG",)))
            found[part][CIFAR_CLASSES.index(label), file] = pixels
    arrays = []
    for images in found.values():
        order = sorted(images)
        arrays.append(np.stack([images[key] for key in order]))
        arrays.append(np.asarray([label for label, _ in order], dtype=np.uint8))
    return tuple(arrays)
