"""LeNet and ResNet18, with their derivatives, against both written out; statistics, refusals."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin_study.networks import convnets
from problems import bare, normal, start
from refusals import refused
from test_convolution import by_windows, value_and_derivatives


def drawn(init):
    """Parameters, around one where they scale a normalised layer, and a direction to move in."""
    params, direction = start(init), start(init, seed=1)

    def around_one(path, leaf):
        return jnp.asarray(1 + np.asarray(leaf)) if path[-1].key == "scale" else leaf

    return jax.tree.map_with_path(around_one, params), direction


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def written_out(params, x, padding):
    """LeNet by JAX's own operations: its outputs, and what each convolution makes."""
    kept, numbers, window = [], ("NHWC", "HWIO", "NHWC"), (1, 2, 2, 1)
    for name in ("conv1", "conv2"):
        kernel, bias = params[name]["kernel"], params[name]["bias"][None, None, None]
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=numbers)
        x = jnp.maximum(x + bias, 0)
        kept.append(x := jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID"))
    x = x.reshape(len(x), -1)
    for index in range(1, len(params) - 1):
        layer = params[f"dense{index}"]
        x = (jnp.maximum(x, 0) if index > 1 else x) @ layer["kernel"] + layer["bias"][None]
    return x, kept


@pytest.mark.parametrize(
    ("shape", "padding", "settings"),
    [
        ((17, 16, 3), "VALID", {"kernel_size": 5, "hidden": (6, 5), "method": "blocks"}),
        # The second kernel is larger than its image.
        ((7, 6, 2), "SAME", {"kernel_size": 4, "hidden": (), "method": "patches"}),
    ],
    ids=["valid", "no hidden layer"],
)
def test_lenet_and_its_derivatives_are_those_written_out(shape, padding, settings):
    model = convnets.lenet(shape, channels=4, classes=3, padding=padding, **settings)
    (params, direction), x = drawn(model.init), normal(5, *shape)

    def ours(params):
        features = convnets.lenet_activations(params, x, padding=padding)
        return model.apply(params, x), [features["conv1"], features["conv2"]]

    def theirs(params):
        return written_out(params, x, padding)

    found, expected = (value_and_derivatives(f)((params,), (direction,)) for f in (ours, theirs))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-8)


def test_parameter_counts():
    assert count(convnets.lenet((32, 32, 3))) == 227_484
    assert count(convnets.resnet18((32, 32, 3), normalization="batch")) == 11_173_962


LENET = functools.partial(convnets.lenet, channels=40, kernel_size=3)


@pytest.mark.parametrize(
    ("make", "gain", "count"),
    [
        (functools.partial(LENET, weight="lecun"), 1, 5),
        (functools.partial(LENET, weight="he"), 2, 5),
        (functools.partial(convnets.resnet18, width=4, normalization="batch"), 1, 21),
    ],
    ids=["lecun", "he", "resnet18"],
)
def test_weights_are_drawn_with_their_scale(make, gain, count):
    """N(0, gain / fan_in); biases are zero, scales one."""
    params, found = jax.jit(make((16, 16, 3)).init)(jax.random.key(1)), 0
    for path, leaf in jax.tree.leaves_with_path(params):
        leaf, name = np.asarray(leaf), path[-1].key
        if name == "kernel":
            found += 1
            variance, error = gain / np.prod(leaf.shape[:-1]), 1 / np.sqrt(leaf.size)
            assert leaf.var() == pytest.approx(variance, rel=8 * error)
            assert abs(leaf.mean()) < 5 * np.sqrt(variance) * error
        else:
            np.testing.assert_array_equal(leaf, {"bias": 0, "scale": 1}[name])
    assert found == count


# --- ResNet18 written out in NumPy, at complex parameters theta + i h v for a tiny h: the real part
# is its value at theta, the imaginary part h times its derivative along v.


def batch_norm(h, layer, frozen, known):
    axes = (0, 1, 2)
    mean = known["mean"] if known else h.mean(axes)
    variance = known["variance"] if known else ((h - mean) ** 2).mean(axes)
    if frozen:
        mean, variance = mean.real, variance.real
    normal = (h - mean) / np.sqrt(variance + 1e-5)
    moments = {"mean": mean.real, "variance": variance.real}
    return layer["scale"] * normal + layer["bias"], moments


def relu(h):
    return np.where(h.real > 0, h, 0)


def numpy_resnet(params, tangent, x, normalization, statistics=None):
    """Outputs, their derivative along `tangent`, and the moments of the batch in each layer."""
    params = jax.tree.map(lambda p, v: np.asarray(p) + 1e-100j * np.asarray(v), params, tangent)
    moments = {}

    def unit(path, h, stride):
        layer, known, found = params, statistics, moments
        for name in path.split("/"):
            layer, known = layer[name], known and known[name]
            found = found.setdefault(name, {})
        h = by_windows(h, layer["conv"]["kernel"], stride, "SAME")
        if normalization:
            known = known and jax.tree.map(np.asarray, known["norm"])
            h, found["norm"] = batch_norm(h, layer["norm"], normalization == "frozen", known)
        return h

    h = relu(unit("stem", np.asarray(x), 1))
    for stage, block in itertools.product((1, 2, 3, 4), (1, 2)):
        name, shrinks = f"stage{stage}_block{block}", stage > 1 and block == 1
        stride = 2 if shrinks else 1
        inner = unit(f"{name}/conv2", relu(unit(f"{name}/conv1", h, stride)), 1)
        h = relu(inner + (unit(f"{name}/shortcut", h, stride) if shrinks else h))
    outputs = h.mean((1, 2)) @ params["dense"]["kernel"] + params["dense"]["bias"]
    return outputs.real, outputs.imag / 1e-100, moments


def resnet_problem(normalization):
    settings = {"normalization": normalization, "method": "direct"}  # The quicker to compile.
    model = convnets.resnet18((9, 8, 2), width=2, classes=3, **settings)
    return model, *drawn(model.init), normal(4, 9, 8, 2)


close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)


def pushforward(f, params, tangent):
    return jax.jit(lambda p, v: jax.jvp(f, (p,), (v,)))(params, tangent)


def test_resnet_is_that_written_out():
    model, params, tangent, x = resnet_problem(None)
    outputs, _, _ = numpy_resnet(params, tangent, x, None)
    close(jax.jit(model.apply)(params, x), outputs)


@pytest.mark.parametrize("normalization", ["batch", "frozen"])
def test_running_statistics_follow_the_moments_and_evaluation_uses_them(normalization):
    model, params, tangent, x = resnet_problem(normalization)
    initial, apply, evaluate, _ = model.normalization
    assert {float(entry) for leaf in jax.tree.leaves(initial) for entry in leaf} == {0, 1}
    outputs, derivative, moments = numpy_resnet(params, tangent, x, normalization)
    (value, running), (pushed, moved) = pushforward(lambda p: apply(p, initial, x), params, tangent)
    close(value, outputs)
    close(pushed, derivative)
    assert jax.tree.structure(initial) == jax.tree.structure(running)
    expected = jax.tree.map(lambda old, seen: 0.9 * old + 0.1 * seen, initial, moments)
    jax.tree.map(close, running, expected)
    # Moving theta away from the anchor moves nothing to first order.
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moved))
    if normalization == "batch":  # "frozen" evaluates in the same way
        other = normal(3, 9, 8, 2)
        outputs, derivative, _ = numpy_resnet(params, tangent, other, normalization, running)
        value, pushed = pushforward(lambda p: evaluate(p, running, other), params, tangent)
        close(value, outputs)
        close(pushed, derivative)


def test_features_are_normalised_channel_by_channel():
    h, channels = normal(6, 3), np.array([[0.5, -1.0, 2.0], [0.2, 1.0, 9.0], [1, 2, 3], [0, -1, 4]])
    expected = [
        s * (h[:, c] - m) / np.sqrt(v + 1e-5) + b for c, (m, v, s, b) in enumerate(channels.T)
    ]
    close(convnets.normalize(h, *map(jnp.asarray, channels)), np.transpose(expected))


test_bad_settings_are_refused = refused(
    lambda network, shape, settings: bare(getattr(convnets, network))(shape, **settings),
    ("lenet", (32, 32), {}, "input_shape"),
    ("lenet", (32, 32, 3), {"channels": 0}, "channels"),
    ("lenet", (32, 32, 3), {"padding": "FULL"}, "'FULL'"),
    ("lenet", (4, 3, 1), {"padding": "SAME"}, "4 x 3"),
    ("resnet18", (32, 32, 3), {"normalization": "layer"}, "'layer'"),
    ("resnet18", (32, 7, 3), {}, "32 x 7"),
)
