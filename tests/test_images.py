"""Image data: hand-made files, splits as promised, crops against NumPy."""

import gzip
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin.study import downloads, image_files, images
from iterlin.study.downloads import DownloadError
from stored_files import cifar_like, digest, idx, jpeg_archive, tar_gz, write_registry

# ------------------------------------------------------------------ subsets

labels_of_any_size = st.integers(1, 6).flatmap(
    lambda classes: st.lists(st.integers(0, classes - 1), min_size=1, max_size=80)
)


@given(labels=labels_of_any_size, seed=st.integers(0, 2**40), data=st.data())
def test_subsets_are_nested_balanced_and_repeatable(labels, seed, data):
    labels = np.asarray(labels)
    large = data.draw(st.integers(0, len(labels)))
    small = data.draw(st.integers(0, large))
    chosen = images.nested_subset(labels, large, seed)
    assert len(set(chosen.tolist())) == large
    assert set(chosen.tolist()) <= set(range(len(labels)))
    np.testing.assert_array_equal(images.nested_subset(labels, small, seed), chosen[:small])
    available = np.bincount(labels)
    counts = np.bincount(labels[chosen], minlength=len(available))
    unfinished = counts < available
    # A class that could still give has at most one example less than any other.
    assert not unfinished.any() or counts[unfinished].min() >= counts.max() - 1


def test_subsets_depend_on_the_seed_and_favour_no_class_or_place():
    labels = np.repeat(np.arange(10), 50)
    draws = [images.nested_subset(labels, 5, seed) for seed in range(400)]
    assert len({tuple(draw) for draw in draws}) == 400
    # 2,000 draws: each class 200 times, each half of a class 1,000 times, give or take 5 sigma.
    np.testing.assert_allclose(np.bincount(labels[np.concatenate(draws)]), 200, atol=70)
    assert np.mean(np.concatenate(draws) % 50 < 25) == pytest.approx(0.5, abs=0.06)


def test_the_draw_does_not_change_with_versions():
    labels = np.asarray([0, 1, 0, 1, 2, 2, 2, 0])
    np.testing.assert_array_equal(images.nested_subset(labels, 8, 3), [0, 4, 1, 7, 5, 3, 6, 2])
    np.testing.assert_array_equal(images.nested_subset(labels, 4, (3, 1)), [0, 6, 1, 2])


# ------------------------------------------------------------------ splits


@given(
    train=st.integers(1, 600),
    fewer=st.integers(1, 600),
    validation=st.integers(0, 400),
    seed=st.integers(0, 1000),
)
def test_splits_are_nested_disjoint_and_of_the_size_asked_for(train, fewer, validation, seed):
    train, fewer = max(train, fewer), min(train, fewer)
    split = images.load("digits", train=train, validation=validation, test=40, seed=seed)
    smaller = images.load("digits", train=fewer, validation=validation, test=40, seed=seed)
    assert split.train.x.shape == (train, 8, 8, 1)
    assert split.validation.x.shape == (validation, 8, 8, 1)
    assert split.test.x.shape == (40, 8, 8, 1)
    for part, less in ((split.train, smaller.train), (split.validation, smaller.validation)):
        np.testing.assert_array_equal(part.x[: len(less.x)], less.x)
        np.testing.assert_array_equal(part.y[: len(less.y)], less.y)
    for part in split:
        counts = np.bincount(np.asarray(part.y), minlength=10)
        assert counts.max() - counts.min() <= 1
    # Every digit of the data set is another picture.
    everything = np.concatenate([part.x for part in split]).reshape(-1, 64)
    assert len(np.unique(everything, axis=0)) == train + validation + 40


def test_digits_as_a_whole():
    from sklearn.datasets import load_digits

    split = images.load("digits", validation=100, seed=4)
    assert [len(part.y) for part in split] == [900, 100, 797]
    pixels = np.concatenate([part.x for part in split])[..., 0]
    y = np.concatenate([part.y for part in split])
    source = load_digits()
    # Undo the normalisation by the range of the pixels, 0 to 16, and compare as sets of rows.
    low, high = pixels.min(), pixels.max()
    back = np.rint((pixels - low) / (high - low) * 16).astype(int).reshape(-1, 64)
    ours = np.unique(np.column_stack([back, y]), axis=0)
    np.testing.assert_array_equal(
        ours, np.unique(np.column_stack([source.data, source.target]), axis=0)
    )
    assert (split.train.x.dtype, split.train.y.dtype) == (jnp.float32, jnp.int32)
    assert images.describe("digits") == "scikit-learn's digits, 8x8"


def test_one_normalisation_for_all_subsets_without_the_validation_examples():
    whole = images.load("digits", validation=300, seed=1)
    np.testing.assert_allclose(np.mean(whole.train.x, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(np.std(whole.train.x, dtype=float), 1, atol=1e-6)
    everything = images.load("digits", seed=1)
    # All 1,000 examples have another mean, so the black pixel is another number.
    assert float(everything.train.x.min()) != float(whole.train.x.min())
    few = images.load("digits", validation=300, train=20, seed=1)
    assert float(few.train.x.min()) == float(few.test.x.min()) == float(whole.train.x.min())


def test_seeds_change_training_and_validation_but_not_the_test_set():
    first, other = (images.load("digits", train=50, validation=50, seed=seed) for seed in (0, 1))
    assert np.any(np.asarray(first.train.y) != np.asarray(other.train.y))
    assert np.any(np.asarray(first.validation.y) != np.asarray(other.validation.y))
    np.testing.assert_array_equal(first.test.y, other.test.y)
    few = images.load("digits", test=30, seed=7)
    np.testing.assert_array_equal(few.test.y, first.test.y[:30])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: images.load("imagenet"), "'imagenet'; allowed: cifar10, cifar10-jpeg, digits, m"),
        (lambda: images.describe("imagenet"), "unknown image data set 'imagenet'"),
        (lambda: images.load("digits", train=0), "train must be a positive integer, got 0"),
        (lambda: images.load("digits", train=1001), "has 1000 training images: train=1001"),
        (lambda: images.load("digits", train=1, validation=1000), "train=1 and validation=1000"),
        (lambda: images.load("digits", validation=1000), "train=None and validation=1000"),
        (lambda: images.load("digits", validation=-1), "validation must be a non-negative integer"),
        (lambda: images.load("digits", test=798), "has 797 test images, fewer than test=798"),
        (lambda: images.load("digits", seed=-1), "seed must be a non-negative integer, got -1"),
        (lambda: images.nested_subset([0, 1], 3, 0), "size 3 cannot be drawn from 2 examples"),
        (
            lambda: images.augment(jax.random.key(0), jnp.zeros((1, 4, 4, 1)), padding=-1),
            "padding must be a non-negative integer, got -1",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------ augmentation


@given(
    shape=st.sampled_from([(1, 1, 1, 1), (5, 3, 6, 2), (4, 6, 2, 3)]),
    padding=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 99),
)
def test_augmentation_is_padding_slicing_and_mirroring(shape, padding, seed):
    size, height, width, _ = shape
    x = np.random.default_rng(seed).normal(size=shape)
    key = jax.random.key(seed)
    found = np.asarray(images.augment(key, jnp.asarray(x), padding=padding))
    crop_key, flip_key = jax.random.split(key)
    offsets = jax.random.randint(crop_key, (size, 2), 0, 2 * padding + 1, dtype=jnp.int32)
    flips = jax.random.randint(flip_key, (size,), 0, 2, dtype=jnp.int32)
    for image, result, (down, across), flip in zip(x, found, offsets, flips, strict=True):
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        expected = padded[down : down + height, across : across + width]
        np.testing.assert_array_equal(result, expected[:, ::-1] if flip else expected)


def test_every_crop_and_mirror_image_is_equally_likely():
    image = np.arange(1.0, 10.0).reshape(3, 3, 1)
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    crops = [padded[i : i + 3, j : j + 3] for i in range(3) for j in range(3)]
    outcomes = {crop.tobytes(): 0 for c in crops for crop in (c, c[:, ::-1])}
    assert len(outcomes) == 18
    copies = jnp.broadcast_to(image, (9000, 3, 3, 1))
    found = np.asarray(images.augment(jax.random.key(3), copies, padding=1))
    for result in found:
        outcomes[result.tobytes()] += 1  # a KeyError here is a picture that no crop gives
    counts = np.asarray(list(outcomes.values()))
    # 17 degrees of freedom: 50 is beyond the 99.99th percentile.
    assert np.sum((counts - 500) ** 2 / 500) < 50
    # Neighbours are drawn by themselves: one in 18 pairs is equal.
    equal = np.mean(np.all(found[:-1] == found[1:], axis=(1, 2, 3)))
    assert equal == pytest.approx(1 / 18, abs=0.012)


def test_augmentation_under_jit_and_vmap_and_in_single_precision():
    x = jax.random.normal(jax.random.key(0), (6, 8, 8, 3))
    keys = jax.random.split(jax.random.key(1), 4)
    expected = np.stack([images.augment(key, x) for key in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(images.augment, (0, None)))(keys, x), expected)
    with jax.enable_x64(False):
        single = images.augment(keys[0], x.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_array_equal(single, expected[0].astype(np.float32))
    assert np.any(expected[0] != expected[1])


# ------------------------------------------------------------------ files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty ITERLIN_DATA beside an empty cache and no registry yet."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(downloads, "REGISTRY", tmp_path / "registry.yml")
    monkeypatch.setattr(downloads, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "data"


def store(folder, name, contents, **examples):
    write_registry(downloads.REGISTRY, name, contents, **examples)
    for file, content in contents.items():
        (folder / file).write_bytes(content)


MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def mnist_like(rng, train, test):
    """Arrays, and the four files that hold them."""
    arrays = (
        rng.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        np.arange(train, dtype=np.uint8) % 10,
        rng.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        np.arange(test, dtype=np.uint8) % 10,
    )
    return arrays, [gzip.compress(idx(array)) for array in arrays]


def normalised(pixels, pool):
    pixels, pool = pixels.astype(float), pool.astype(float)
    return (pixels - pool.mean(axis=(0, 1, 2))) / pool.std(axis=(0, 1, 2))


def rows(dataset):
    """Images with their labels as a sorted list of rows, for comparison in any order."""
    x = np.asarray(dataset.x, dtype=float).reshape(len(dataset.x), -1).round(4)
    return np.unique(np.column_stack([np.asarray(dataset.y), x]), axis=0)


def assert_same_images(found, x, y):
    expected = np.column_stack([y, x.reshape(len(x), -1).round(4)])
    expected = expected[np.lexsort(expected.T[::-1])]
    np.testing.assert_allclose(rows(found), expected, atol=2e-4)


def test_mnist_files(folder):
    (x, y, x_test, y_test), files = mnist_like(np.random.default_rng(0), 30, 20)
    store(folder, "mnist", dict(zip(MNIST_NAMES, files, strict=True)), train=30, test=20)
    split = images.load("mnist")
    assert split.train.x.shape == (30, 28, 28, 1)
    assert_same_images(split.train, normalised(x[..., None], x[..., None]), y)
    assert_same_images(split.test, normalised(x_test[..., None], x[..., None]), y_test)
    assert images.describe("mnist") == "MNIST, sha256 " + ", ".join(
        digest(file)[:16] for file in files
    )


def test_mnist_files_of_another_size_than_the_registry_says(folder):
    _, files = mnist_like(np.random.default_rng(0), 30, 20)
    store(folder, "mnist", dict(zip(MNIST_NAMES, files, strict=True)), train=31, test=20)
    with pytest.raises(DownloadError, match=r"mnist: the train images have shape \(30, 2"):
        images.load("mnist")


def test_cifar_binary_archive(folder):
    x, y, members = cifar_like(np.random.default_rng(1), 4)
    archive = {"cifar-10-binary.tar.gz": tar_gz(members)}
    store(folder, "cifar10", archive, train=20, test=4)
    split = images.load("cifar10", train=20)
    assert_same_images(split.train, normalised(x[:20], x[:20]), y[:20])
    assert_same_images(split.test, normalised(x[20:], x[:20]), y[20:])
    # Each channel by itself.
    np.testing.assert_allclose(np.mean(split.train.x, axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(split.train.x, axis=(0, 1, 2)), 1, atol=1e-5)


# ------------------------------------------------------------------ decoded arrays


@pytest.fixture
def decodings(folder, monkeypatch):
    """A small cifar10-jpeg in ITERLIN_DATA; the list grows at each decoding."""
    archive = {"pictures.tar.gz": tar_gz(jpeg_archive())}
    store(folder, "cifar10-jpeg", archive, train=10, test=10)
    seen, decode = [], image_files.read_cifar_jpeg

    def read(path):
        seen.append(path)
        return decode(path)

    monkeypatch.setattr(image_files, "read_cifar_jpeg", read)
    return seen


def kept():
    return sorted((downloads.cache_folder() / "decoded").iterdir())


def test_arrays_are_decoded_once(decodings):
    first, second = images.load("cifar10-jpeg"), images.load("cifar10-jpeg")
    assert len(decodings) == 1
    for part, again in zip(first, second, strict=True):
        np.testing.assert_array_equal(part.x, again.x)
        np.testing.assert_array_equal(part.y, again.y)
    (file,) = kept()
    assert file.name == f"cifar10-jpeg-{digest(decodings[0].read_bytes())[:16]}-1.npz"


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("damage", ["truncated", "another", "pickled", "fewer"])
def test_damaged_arrays_are_decoded_again(decodings, damage):
    expected = images.load("cifar10-jpeg")
    (file,) = kept()
    parts = {"x": np.zeros((10, 32, 32, 3), np.uint8), "y": np.zeros(10, np.uint8)}
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:5000])
    elif damage == "another":
        file.write_bytes(b"something else")
    elif damage == "pickled":
        np.savez(file, x=np.asarray([Trap(downloads.cache_folder() / "sprung")], dtype=object))
    else:
        np.savez(file, **parts, x_test=parts["x"][:5], y_test=parts["y"][:5])
    found = images.load("cifar10-jpeg")
    assert len(decodings) == 2
    np.testing.assert_array_equal(found.train.x, expected.train.x)
    assert len(kept()) == 1
    images.load("cifar10-jpeg")
    assert len(decodings) == 2
    assert not (downloads.cache_folder() / "sprung").exists()


def test_another_archive_or_decoder_is_decoded_anew(decodings, folder, monkeypatch):
    images.load("cifar10-jpeg")
    monkeypatch.setattr(images, "DECODER", 2)
    images.load("cifar10-jpeg")
    assert len(decodings) == 2
    changed = jpeg_archive()
    changed["any/README.md"] = b"other pictures"
    store(folder, "cifar10-jpeg", {"pictures.tar.gz": tar_gz(changed)}, train=10, test=10)
    images.load("cifar10-jpeg")
    assert len(decodings) == len(kept()) == 3


def test_a_cache_that_cannot_be_written_costs_only_time(decodings, monkeypatch):
    downloads.cache_folder().write_text("a file where the folder should be")
    images.load("cifar10-jpeg")
    images.load("cifar10-jpeg")
    assert len(decodings) == 2


def test_a_disk_that_is_full_leaves_no_part_behind(decodings, monkeypatch):
    def fill(written, **arrays):
        written.write(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(images.np, "savez", fill)
    assert len(images.load("cifar10-jpeg").train.y) == 10
    assert kept() == []


# ------------------------------------------------------------------ the real files


def needs(name):
    """Skip unless ITERLIN_DATA holds the files: no test downloads them."""
    if not os.environ.get("ITERLIN_DATA"):
        pytest.skip("ITERLIN_DATA is not set")
    if not all(downloads._in_folder(file) for file in downloads.registry()[name]["files"]):
        pytest.skip(f"ITERLIN_DATA has no {name}")


def test_the_real_mnist():
    needs("mnist")
    x, y, x_test, _ = images._read_mnist()
    assert (x.shape, x_test.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert y[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(y)[[1, 5]].tolist() == [6742, 5421]
    # The constants that every tutorial prints.
    mean, std = images._channel_statistics(x, np.arange(len(x)))
    np.testing.assert_allclose([mean[0] / 255, std[0] / 255], [0.1307, 0.3081], atol=5e-5)
    split = images.load("mnist", train=500, validation=5000, test=1000)
    for part, size in zip(split, (500, 5000, 1000), strict=True):
        assert part.x.shape == (size, 28, 28, 1)
        np.testing.assert_array_equal(np.bincount(part.y), size // 10)


@pytest.mark.parametrize("name", ["cifar10", "cifar10-jpeg"])
def test_the_real_cifar(name, tmp_path, monkeypatch):
    needs(name)
    monkeypatch.setattr(downloads, "cache_folder", lambda: tmp_path)
    x, y, x_test, y_test = images._READERS[name]()
    assert (x.shape, x_test.shape) == ((50_000, 32, 32, 3), (10_000, 32, 32, 3))
    np.testing.assert_array_equal(np.bincount(y), 5000)
    np.testing.assert_array_equal(np.bincount(y_test), 1000)
    # The training set's channel means that are usually quoted; JPEG hardly moves them.
    mean, _ = images._channel_statistics(x, np.arange(len(x)))
    np.testing.assert_allclose(mean / 255, [0.4914, 0.4822, 0.4465], atol=0.002)
