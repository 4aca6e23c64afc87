"""The files of MNIST and CIFAR-10 as arrays of bytes: IDX, the binary archive, JPEG pictures.

Each reader raises `downloads.DownloadError`, which names the file, for a damaged one.
"""

import gzip
import io
import tarfile
import zlib
from pathlib import Path

import numpy as np

from iterlin.study.downloads import DownloadError

CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def _decompressed(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DownloadError(f"{path} is damaged: {error}") from error


def read_idx(path: Path) -> np.ndarray:
    """Bytes in the IDX format: 0, 0, 8, the rank, each size as 4 bytes (big-endian), values."""
    content = _decompressed(path)
    rank = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    if rank == 0 or len(content) < 4 + 4 * rank:
        raise DownloadError(f"{path} is not an IDX file of bytes: it begins {content[:4]!r}")
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank)
    if values.size != np.prod(shape, dtype=int):
        raise DownloadError(f"{path} holds {values.size} values, its header says {shape.tolist()}")
    return values.reshape(shape)


def _members(path: Path):
    """Names and contents of the files of a .tar.gz archive, which is not extracted."""
    content = io.BytesIO(_decompressed(path))
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, archive.extractfile(member).read()
    except tarfile.TarError as error:
        raise DownloadError(f"{path} is damaged: {error}") from error


def read_cifar_binary(path: Path) -> tuple[np.ndarray, ...]:
    """The official binary version: per image a label, then 1,024 bytes each of red, green, blue.

    Returns x (N, 32, 32, 3) and y (N,) of the training set, then those of the test set.
    """
    found = dict(_members(path))

    def batches(names):
        records = []
        for name in names:
            content = found.get(f"cifar-10-batches-bin/{name}.bin", b"")
            if not content or len(content) % 3073:
                raise DownloadError(
                    f"{path}: {name}.bin has {len(content)} bytes, not a multiple of 3073"
                )
            records.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073))
        records = np.concatenate(records)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), records[:, 0].copy()

    return *batches([f"data_batch_{i}" for i in range(1, 6)]), *batches(["test_batch"])


def read_cifar_jpeg(path: Path) -> tuple[np.ndarray, ...]:
    """<any>/{train,test}/<class>/<number>.jpg, by class and number, as `read_cifar_binary` does.

    Decoders of JPEG may differ by a grey level.
    """
    from PIL import Image

    found = {"train": {}, "test": {}}
    for name, content in _members(path):
        part, label, file = ("", "", "", *name.split("/"))[-3:]
        if part in found and label in CIFAR_CLASSES and file.endswith(".jpg"):
            try:
                with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
                    pixels = np.asarray(image)
            except (OSError, SyntaxError) as error:
                raise DownloadError(f"{path}: {name} is no image: {error}") from error
            if pixels.shape != (32, 32, 3):
                raise DownloadError(f"{path}: {name} has shape {pixels.shape}, not (32, 32, 3)")
            found[part][CIFAR_CLASSES.index(label), file] = pixels
    if not (found["train"] and found["test"]):
        raise DownloadError(f"{path} has no images in train/<class>/ and test/<class>/")
    arrays = []
    for images in found.values():
        order = sorted(images)
        arrays.append(np.stack([images[key] for key in order]))
        arrays.append(np.asarray([label for label, _ in order], dtype=np.uint8))
    return tuple(arrays)
