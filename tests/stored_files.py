"""Small stand-ins for the downloaded files, and a registry that lists them."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import yaml
from iterlin_study.data.images import CIFAR_CLASSES
from PIL import Image


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_registry(path, name, contents, *, url="http://127.0.0.1:9/"):
    """A registry with one data set, whose files (name -> bytes) come from the given address."""
    files = [{"name": n, "sha256": digest(c), "url": url + n} for n, c in contents.items()]
    entry = {"title": name.upper(), "files": files}
    path.write_text(yaml.safe_dump({name: entry}), "utf8")


def tar_gz(members) -> bytes:
    """A .tar.gz archive of the members (name -> bytes), in that order."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def idx(values) -> bytes:
    """The values in the IDX format."""
    values = np.asarray(values, dtype=np.uint8)
    header = b"\0\0\x08" + bytes([values.ndim])
    return header + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def cifar_like(rng, per_batch):
    """Pixels (N, 32, 32, 3), labels, and the members of the official archive that holds them."""
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    x, y = [], []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        record = b""
        for _ in range(per_batch):
            image, label = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), len(y) % 10
            x.append(image)
            y.append(label)
            record += bytes([label]) + b"".join(image[..., c].tobytes() for c in range(3))
        members[f"cifar-10-batches-bin/{name}.bin"] = record
    return np.stack(x), np.asarray(y), members


def jpeg(pixels):
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "JPEG", quality=95)
    return packed.getvalue()


def jpeg_archive(per_class=1):
    """Plain pictures, one colour for each class and part, in an order that is not theirs."""
    members = {"any/README.md": b"pictures"}
    for part, green in (("test", 200), ("train", 20)):
        for label, name in reversed(list(enumerate(CIFAR_CLASSES))):
            for number in range(per_class):
                colour = label * 20, green + 5 * label, number * 50 + 5 * label
                picture = jpeg(np.full((32, 32, 3), colour, np.uint8))
                members[f"any/{part}/{name}/{number:04}.jpg"] = picture
    return members
