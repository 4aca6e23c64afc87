"""Image data as arrays: official splits, class-balanced nested subsets, crops and flips.

Pixels come from `downloads` (MNIST and CIFAR-10), whose files have been verified by their SHA-256,
or with scikit-learn (digits). Nothing that is downloaded is ever unpickled.
"""

import gzip
import io
import tarfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from iterlin.linearise.devices import to_array
from iterlin.linearise.validation import (
    check_non_negative_integer,
    check_one_of,
    check_positive_integer,
)
from jaxtyping import Array, Float

from iterlin_study.data import downloads
from iterlin_study.data.toy import Dataset, nested_subset

DIGITS_POOL = 1000
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
CIFAR_CLASSES += ("dog", "frog", "horse", "ship", "truck")


class ImageSplit(NamedTuple):
    """x (N, H, W, C) float32, normalised; y (N,) int32."""

    train: Dataset
    validation: Dataset
    test: Dataset


def load(
    name: str,
    *,
    train: int | None = None,
    validation: int = 0,
    test: int | None = None,
    seed: int = 0,
) -> ImageSplit:
    """Load images by name: digits, mnist, cifar10 or cifar10-jpeg.

    `validation` examples are taken from the official training set and `train` of the others, all
    of them by default; both are class-balanced and depend on `seed`, the test set does not. Each
    part is ordered so that its first n examples are the balanced subset of size n: subsets of one
    seed are nested. Channels are normalised by the mean and standard deviation of all official
    training examples but the validation ones, so that the subsets share one normalisation.

    digits has no official split: 1,000 balanced examples are its training set, the other 797 its
    test set. Raises ValueError for unknown names and for sizes beyond what there is, DownloadError
    (`iterlin_study.data.downloads`) for files that cannot be had.
    """
    check_one_of("image data set", name, _READERS)
    check_non_negative_integer("validation", validation)
    for part, size in (("train", train), ("test", test)):
        if size is not None:
            check_positive_integer(part, size)
    x, y, x_test, y_test = _READERS[name]()
    if validation >= len(y):
        raise ValueError(f"validation={validation} takes all {len(y)} training images of {name}")
    held_out = nested_subset(y, validation, (seed, 1))
    pool = np.setdiff1d(np.arange(len(y)), held_out)
    chosen = pool[nested_subset(y[pool], len(pool) if train is None else train, seed)]
    tested = nested_subset(y_test, len(y_test) if test is None else test, 0)
    mean, std = _channel_statistics(x, pool)

    def part(x, y, indices):
        pixels = x[indices].astype(np.float32)
        pixels -= mean
        pixels /= std
        return Dataset(to_array(pixels), to_array(y[indices], jnp.int32))

    return ImageSplit(part(x, y, chosen), part(x, y, held_out), part(x_test, y_test, tested))


def describe(name: str) -> str:
    """Return one line for a record: the images' title and the SHA-256 of their files."""
    if name == "digits":
        return "scikit-learn's digits, 8x8"
    entry = downloads.registry()[name]
    hashes = ", ".join(file.sha256[:16] for file in entry["files"])
    return f"{entry['title']}, sha256 {hashes}"


def augment(key: Array, x: Float[Array, "N H W C"], *, padding: int = 4) -> Float[Array, "N H W C"]:
    """Crop each image at random from its zero-padded self; mirror it with probability 1/2.

    Zero is the mean pixel once the images are normalised. The offsets of the crop, in [0, 2
    padding] down and across, and the mirroring are drawn from the key for each image by itself.
    For photographs: a mirrored digit is another sign.
    """
    check_non_negative_integer("padding", padding)
    size, height, width, channels = x.shape
    crop_key, flip_key = jax.random.split(key)
    # int32 whatever the precision of the run: one key, one draw.
    offsets = jax.random.randint(crop_key, (size, 2), 0, 2 * padding + 1, dtype=jnp.int32)
    flips = jax.random.randint(flip_key, (size,), 0, 2, dtype=jnp.int32) == 1
    margin = (padding, padding)
    padded = jnp.pad(x, ((0, 0), margin, margin, (0, 0)))

    def crop(image, offset):
        return jax.lax.dynamic_slice(image, (*offset, jnp.int32(0)), (height, width, channels))

    cropped = jax.vmap(crop)(padded, offsets)
    return jnp.where(flips[:, None, None, None], cropped[:, :, ::-1], cropped)


def _channel_statistics(x, indices):
    """Return mean and standard deviation (C,) of the pixels of those images, from exact counts."""
    pixels = [channel[indices].ravel() for channel in np.moveaxis(x, -1, 0)]
    counts = np.stack([np.bincount(each, minlength=256) for each in pixels])
    values, total = np.arange(256), counts.sum(axis=1)
    mean = counts @ values / total
    variance = counts @ values**2 / total - mean**2
    return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


def _read_digits():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[..., None], bunch.target
    chosen = nested_subset(y, DIGITS_POOL, 0)
    others = np.setdiff1d(np.arange(len(y)), chosen)
    return x[chosen], y[chosen], x[others], y[others]


def _read_idx(path: Path) -> np.ndarray:
    """Read the IDX format: 0, 0, 8, the rank, each size as 4 bytes (big-endian), values."""
    content = gzip.decompress(path.read_bytes())
    rank = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def _members(path: Path) -> dict[str, bytes]:
    """Return the contents of the files of a .tar.gz archive by name, without extracting it."""
    with tarfile.open(path, mode="r:gz") as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}


def _read_cifar_binary(path: Path) -> tuple[np.ndarray, ...]:
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


def _read_cifar_jpeg(path: Path) -> tuple[np.ndarray, ...]:
    """Read <any>/{train,test}/<class>/<number>.jpg in that order; returns as `_read_cifar_binary`.

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


def _read_mnist():
    x, y, x_test, y_test = (_read_idx(path) for path in downloads.fetch("mnist"))
    return x[..., None], y, x_test[..., None], y_test


_READERS = {
    "digits": _read_digits,
    "mnist": _read_mnist,
    "cifar10": lambda: _read_cifar_binary(*downloads.fetch("cifar10")),
    "cifar10-jpeg": lambda: _read_cifar_jpeg(*downloads.fetch("cifar10-jpeg")),
}
