"""The readers of image files: hand-made files come back, damaged ones are named."""

import gzip

import numpy as np
import pytest
from iterlin.study import image_files
from iterlin.study.downloads import DownloadError
from stored_files import cifar_like, idx, jpeg, jpeg_archive, tar_gz


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(np.ones((4, 3))))[:-9], "is damaged"),
        (b"no gzip at all", "is damaged"),
        (gzip.compress(b"\0\0\x0d\1" + idx([1])[4:]), "is not an IDX file of bytes"),
        (gzip.compress(b""), "is not an IDX file of bytes"),
        (gzip.compress(idx(np.ones((4, 3)))[:9]), "is not an IDX file of bytes"),
        (gzip.compress(idx(np.ones((4, 3)))[:-1]), r"holds 11 values, its header says \[4, 3\]"),
        (gzip.compress(idx(np.ones((4, 3))) + b"\0"), r"holds 13 values, its header"),
    ],
    ids=["truncated", "no gzip", "another type", "empty", "half a header", "short", "long"],
)
def test_damaged_idx_files_are_named(tmp_path, content, message):
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=f"{path} {message}"):
        image_files.read_idx(path)


def test_damaged_cifar_binary_archives_are_named(tmp_path):
    _, _, members = cifar_like(np.random.default_rng(1), 4)
    path = tmp_path / "cifar.tar.gz"
    whole = tar_gz(members)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DownloadError, match=f"{path} is damaged"):
        image_files.read_cifar_binary(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:20_000]))
    with pytest.raises(DownloadError, match=f"{path} is damaged"):
        image_files.read_cifar_binary(path)
    short = "cifar-10-batches-bin/data_batch_3.bin"
    path.write_bytes(tar_gz({**members, short: members[short][:-1]}))
    with pytest.raises(DownloadError, match=f"{path}: data_batch_3.bin has 12291 bytes"):
        image_files.read_cifar_binary(path)
    del members["cifar-10-batches-bin/test_batch.bin"]
    path.write_bytes(tar_gz(members))
    with pytest.raises(DownloadError, match=f"{path}: test_batch.bin has 0 bytes"):
        image_files.read_cifar_binary(path)


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


def test_damaged_jpeg_archives_are_named(tmp_path):
    path = tmp_path / "pictures.tar.gz"
    members = jpeg_archive()
    name = "any/train/cat/0000.jpg"
    for content, message in (
        (b"no picture", f"{path}: {name} is no image"),
        (jpeg(np.zeros((32, 32, 3), np.uint8), "PNG"), f"{path}: {name} is no image"),
        (members[name][:300], f"{path}: {name} is no image"),
        (jpeg(np.zeros((16, 32, 3), np.uint8)), rf"{path}: {name} has shape \(16, 32, 3\)"),
        (jpeg(np.zeros((32, 32), np.uint8)), rf"{path}: {name} has shape \(32, 32\)"),
    ):
        path.write_bytes(tar_gz({**members, name: content}))
        with pytest.raises(DownloadError, match=message):
            image_files.read_cifar_jpeg(path)
    path.write_bytes(tar_gz({"any/README.md": b"pictures"}))
    with pytest.raises(DownloadError, match=f"{path} has no images"):
        image_files.read_cifar_jpeg(path)
