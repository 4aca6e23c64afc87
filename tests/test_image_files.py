"""The readers of image files: hand-made files come back, damaged ones are named."""

import gzip

import numpy as np
import pytest
from iterlin.study import image_files
from iterlin.study.downloads import DownloadError
from stored_files import cifar_like, idx, jpeg, jpeg_archive, tar_gz

TWELVE = idx(np.ones((4, 3)))
CIFAR = cifar_like(np.random.default_rng(1), 4)[2]
BATCH, TESTED = (f"cifar-10-batches-bin/{name}.bin" for name in ("data_batch_3", "test_batch"))
PICTURES, CAT = jpeg_archive(), "any/train/cat/0000.jpg"
IDX, BINARY, JPEG = (
    getattr(image_files, f"read_{n}") for n in ("idx", "cifar_binary", "cifar_jpeg")
)


def with_cat(content):
    return tar_gz(PICTURES | {CAT: content})


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (IDX, gzip.compress(TWELVE)[:-9], "damaged"),
        (IDX, b"no gzip at all", "damaged"),
        (IDX, gzip.compress(b"\0\0\x0d\1" + idx([1])[4:]), "not an IDX file of bytes"),
        (IDX, gzip.compress(b""), "not an IDX file of bytes"),
        (IDX, gzip.compress(TWELVE[:9]), "not an IDX file of bytes"),
        (IDX, gzip.compress(TWELVE[:-1]), r"holds 11 values, .*\[4, 3\]"),
        (IDX, gzip.compress(TWELVE + b"\0"), "holds 13 values"),
        (BINARY, tar_gz(CIFAR)[:20_000], "damaged"),
        (BINARY, gzip.compress(gzip.decompress(tar_gz(CIFAR))[:20_000]), "damaged"),
        (BINARY, tar_gz(CIFAR | {BATCH: CIFAR[BATCH][:-1]}), "data_batch_3.bin has 12291 bytes"),
        (BINARY, tar_gz(CIFAR | {TESTED: b""}), "test_batch.bin has 0 bytes"),
        (JPEG, with_cat(b"no picture"), f"{CAT} is no image"),
        (JPEG, with_cat(jpeg(np.zeros((32, 32, 3), np.uint8), "PNG")), f"{CAT} is no image"),
        (JPEG, with_cat(PICTURES[CAT][:300]), f"{CAT} is no image"),
        (JPEG, with_cat(jpeg(np.zeros((16, 32, 3), np.uint8))), rf"{CAT} has shape \(16, 32, 3\)"),
        (JPEG, with_cat(jpeg(np.zeros((32, 32), np.uint8))), rf"{CAT} has shape \(32, 32\)"),
        (JPEG, tar_gz({"any/README.md": b"pictures"}), "no images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_files_are_named(tmp_path, read, content, message):
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=f"{path}.* {message}"):
        read(path)


def test_cifar_jpeg_archive(tmp_path):
    path = tmp_path / "pictures.tar.gz"
    path.write_bytes(tar_gz(jpeg_archive(per_class=2)))
    x, y, x_test, y_test = image_files.read_cifar_jpeg(path)
    for pixels, labels, green in ((x, y, 20), (x_test, y_test, 200)):
        assert pixels.shape == (20, 32, 32, 3)
        np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 2))
        red = labels.astype(int) * 20
        expected = np.stack([red, green + red // 4, np.tile([0, 50], 10) + red // 4], axis=1)
        # JPEG is lossy: within a few grey levels of what went in.
        np.testing.assert_allclose(pixels[:, 5, 7].astype(int), expected, atol=4)
