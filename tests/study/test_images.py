"""Data sets: hand-made files, splits as promised, crops against NumPy, toy distributions."""

import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin_study.data import downloads, images, toy
from problems import bare
from refusals import refused
from stored_files import cifar_like, digest, idx, jpeg_archive, tar_gz, write_registry

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


def test_the_draw_does_not_change_with_versions():
    labels = np.asarray([0, 1, 0, 1, 2, 2, 2, 0])
    np.testing.assert_array_equal(images.nested_subset(labels, 4, (3, 1)), [0, 6, 1, 2])


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
    shapes = [part.x.shape for part in (split.train, split.validation, split.test)]
    assert shapes == [(size, 8, 8, 1) for size in (train, validation, 40)]
    split, smaller = (jax.tree.map(np.asarray, each) for each in (split, smaller))
    for part, less in ((split.train, smaller.train), (split.validation, smaller.validation)):
        np.testing.assert_array_equal(part.x[: len(less.x)], less.x)
        np.testing.assert_array_equal(part.y[: len(less.y)], less.y)
    for part in split:
        counts = np.bincount(part.y, minlength=10)
        assert counts.max() - counts.min() <= 1
    # Every digit of the data set is another picture.
    everything = np.concatenate([part.x for part in split]).reshape(-1, 64)
    assert len(np.unique(everything, axis=0)) == train + validation + 40


def test_one_normalisation_for_all_subsets_without_the_validation_examples():
    whole = images.load("digits", validation=300, seed=1)
    np.testing.assert_allclose(np.mean(whole.train.x, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(np.std(whole.train.x, dtype=float), 1, atol=1e-6)
    few = images.load("digits", validation=300, train=20, seed=1)
    black = float(whole.train.x.min())
    assert float(few.train.x.min()) == float(few.test.x.min()) == black
    # All 1,000 examples have another mean.
    assert float(images.load("digits", seed=1).train.x.min()) != black


def test_seeds_change_training_and_validation_but_not_the_test_set():
    first, other = (images.load("digits", train=50, validation=50, seed=seed) for seed in (0, 1))
    for part in ("train", "validation"):
        assert np.any(np.asarray(getattr(first, part).y) != np.asarray(getattr(other, part).y))
    few = images.load("digits", test=30, seed=7)
    for y in (other.test.y[:30], few.test.y):
        np.testing.assert_array_equal(y, first.test.y[:30])


test_bad_settings_are_refused = refused(
    lambda call: call(),
    (lambda: images.load("imagenet"), "'imagenet'"),
    (lambda: images.load("digits", train=0), "train"),
    (lambda: images.load("digits", train=1001), "size 1001"),
    (lambda: images.load("digits", validation=1000), "validation=1000"),
    (lambda: images.load("digits", test=798), "size 798"),
    (lambda: images.nested_subset([0, 1], 3, 0), "size 3"),
    (lambda: bare(toy.xor)(jax.random.key(0), 0), "size must .* got 0"),
    (lambda: toy.quintic(2.0, 1.0), r"\[2.0, 1.0\] is empty"),
    (lambda: toy.digits(1797), "train must .* 1797"),
)


def test_every_crop_and_mirror_image_is_equally_likely():
    image = np.arange(12.0).reshape(3, 2, 2) + 1
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    crops = [padded[i : i + 3, j : j + 2] for i in range(3) for j in range(3)]
    outcomes = {np.ascontiguousarray(crop).tobytes(): 0 for c in crops for crop in (c, c[:, ::-1])}
    assert len(outcomes) == 18
    copies = jnp.broadcast_to(image, (9000, 3, 2, 2))
    augment = jax.jit(images.augment, static_argnames="padding")
    found = np.asarray(augment(jax.random.key(3), copies, padding=1))
    for result in found:
        outcomes[result.tobytes()] += 1  # a KeyError here is a picture that no crop gives
    counts = np.asarray(list(outcomes.values()))
    # 17 degrees of freedom: 50 is beyond the 99.99th percentile.
    assert np.sum((counts - 500) ** 2 / 500) < 50
    # Neighbours are drawn independently: one in 18 pairs is equal.
    equal = np.mean(np.all(found[:-1] == found[1:], axis=(1, 2, 3)))
    assert equal == pytest.approx(1 / 18, abs=0.012)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty ITERLIN_DATA beside an empty cache and no registry yet."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(downloads, "REGISTRY", tmp_path / "registry.yml")
    monkeypatch.setattr(downloads, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "data"


def store(folder, name, contents):
    write_registry(downloads.REGISTRY, name, contents)
    for file, content in contents.items():
        (folder / file).write_bytes(content)


def normalised(pixels, pool):
    pixels, pool = pixels.astype(float), pool.astype(float)
    return (pixels - pool.mean(axis=(0, 1, 2))) / pool.std(axis=(0, 1, 2))


def assert_images(part, x, y):
    order = images.nested_subset(y, len(y), 0)
    np.testing.assert_array_equal(part.y, y[order])
    np.testing.assert_allclose(part.x, x[order], atol=1e-5)


def test_mnist_files(folder):
    rng = np.random.default_rng(0)
    x, x_test = (rng.integers(0, 256, (n, 28, 28, 1), dtype=np.uint8) for n in (30, 20))
    y, y_test = (np.arange(n)[::-1] % 10 for n in (30, 20))
    arrays = (x[..., 0], y, x_test[..., 0], y_test)
    kinds = ("images-idx3", "labels-idx1")
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in kinds]
    contents = dict(zip(names, (gzip.compress(idx(a)) for a in arrays), strict=True))
    store(folder, "mnist", contents)
    split = images.load("mnist")
    assert_images(split.train, normalised(x, x), y)
    assert_images(split.test, normalised(x_test, x), y_test)
    for file in contents.values():
        assert digest(file)[:16] in images.describe("mnist")


def test_cifar_binary_archive(folder):
    x, y, members = cifar_like(np.random.default_rng(1), 4)
    store(folder, "cifar10", {"cifar-10-binary.tar.gz": tar_gz(members)})
    split = images.load("cifar10", train=20)
    assert_images(split.train, normalised(x[:20], x[:20]), y[:20])
    assert_images(split.test, normalised(x[20:], x[:20]), y[20:])


def test_cifar_jpeg_archive(folder):
    store(folder, "cifar10-jpeg", {"pictures.tar.gz": tar_gz(jpeg_archive(per_class=2))})
    arrays = images._READERS["cifar10-jpeg"]()
    for pixels, labels, green in ((*arrays[:2], 20), (*arrays[2:], 200)):
        assert pixels.shape == (20, 32, 32, 3)
        np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 2))
        red = labels.astype(int) * 20
        expected = np.stack([red, green + red // 4, np.tile([0, 50], 10) + red // 4], axis=1)
        # JPEG is lossy: within a few grey levels of what went in.
        np.testing.assert_allclose(pixels[:, 5, 7].astype(int), expected, atol=4)


# Toy data.


def test_xor_clusters():
    x, y = map(np.asarray, toy.xor(jax.random.key(0), 20_000))
    np.testing.assert_array_equal(y[:, 0], x[:, 0] * x[:, 1])
    # E X^2 = 1 + variance, E X = 0 and the coordinates are independent.
    np.testing.assert_allclose(np.mean(x**2, 0), 1.1, rtol=0.02)
    np.testing.assert_allclose([*x.mean(0), y.mean()], 0, atol=0.03)


def test_quintic_points():
    # By hand: x^5/32 - x^3/2 + 2x - 1.
    by_hand = toy.quintic_polynomial(jnp.arange(-2.0, 3.0))
    np.testing.assert_allclose(by_hand, [-2, -2.53125, -1, 0.53125, 0])
    for size, (x, y) in zip((20, 1000), toy.quintic(-2.0, 1.0), strict=True):
        np.testing.assert_allclose(x, np.linspace(-2, 1, size)[:, None], atol=1e-15)
        np.testing.assert_allclose(y, toy.quintic_polynomial(x), atol=1e-15)


def test_digits_split_is_balanced_disjoint_standardised_and_by_its_seed():
    size = 203
    train, test = (jax.tree.map(np.asarray, part) for part in toy.digits(size))
    assert np.ptp(np.bincount(train.y)) <= 1
    assert (len(train.y), len(test.y)) == (size, 1797 - size)
    np.testing.assert_allclose([train.x.mean(), train.x.std()], [0, 1], atol=1e-6)
    assert len(np.unique(np.concatenate([train.x, test.x]), axis=0)) == 1797
    np.testing.assert_array_equal(toy.digits(size, seed=0).train.x, train.x)
    assert np.any(np.asarray(toy.digits(size, seed=1).train.x) != train.x)
