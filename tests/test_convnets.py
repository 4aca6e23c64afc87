"""LeNet and ResNet18, with their derivatives, against both written out; statistics, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearization import jacobian_products, linearize, require_independent, tree_add
from iterlin.networks import convnets
from iterlin.networks.mlp import parameter_count
from iterlin.networks.modules import BatchNorm, Block
from problems import bare


def images(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def perturbed(params, seed=0, scale=0.3):
    """Parameters with no zero biases and unit scales left; or, around zeros, a direction."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    moved = [leaf + scale * jnp.asarray(rng.normal(size=leaf.shape)) for leaf in leaves]
    return jax.tree.unflatten(tree, moved)


def direction(params, seed=1):
    return perturbed(jax.tree.map(jnp.zeros_like, params), seed, scale=1.0)


def count(model):
    return parameter_count(jax.eval_shape(model.init, jax.random.key(0)))


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


LENETS = {
    "valid": ((17, 16, 3), {"kernel_size": 5, "padding": "VALID", "hidden": (6, 5)}),
    "same": ((8, 8, 1), {"kernel_size": 3, "padding": "SAME", "hidden": (6,)}),
    # The second kernel is larger than its image.
    "no hidden layer": ((7, 6, 2), {"kernel_size": 4, "padding": "SAME", "hidden": ()}),
}


@pytest.mark.parametrize("case", LENETS)
@pytest.mark.parametrize("method", ["direct", "patches", "blocks"])
def test_lenet_and_its_derivatives_are_those_written_out(case, method):
    shape, settings = LENETS[case]
    model = convnets.lenet(shape, channels=4, classes=3, method=method, **settings)
    params, x = perturbed(model.init(jax.random.key(0))), images(5, *shape)
    expected, kept = written_out(params, x, settings["padding"])
    np.testing.assert_allclose(model.apply(params, x), expected, atol=1e-11)
    found = convnets.lenet_activations(params, x, padding=settings["padding"], method=method)
    assert list(found) == ["conv1", "conv2"]
    for ours, theirs in zip(found.values(), kept, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
        assert ours.min() >= 0

    def outputs(params):
        return written_out(params, x, settings["padding"])[0]

    tangent = direction(params)
    products = jacobian_products(model.apply, params, x)
    expected = jax.jvp(outputs, (params,), (tangent,))[1]
    np.testing.assert_allclose(products.jvp(tangent), expected, rtol=1e-9, atol=1e-9)
    pulled = jax.vjp(outputs, params)[1](expected)[0]
    for ours, theirs in zip(*map(jax.tree.leaves, (products.vjp(expected), pulled)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-8)


def test_parameter_counts():
    assert count(convnets.lenet((32, 32, 3))) == 227_484
    digits = convnets.lenet((8, 8, 1), channels=6, kernel_size=3, padding="SAME", hidden=(7,))
    assert count(digits) == (9 * 6 + 6) + (54 * 6 + 6) + (24 * 7 + 7) + (70 + 10)
    assert count(convnets.resnet18((32, 32, 3), normalization="batch")) == 11_173_962
    assert count(convnets.resnet18((32, 32, 3), normalization="frozen")) == 11_173_962
    # 2 numbers for each normalised channel, 75 blocks of 64 channels in all.
    assert count(convnets.resnet18((32, 32, 3))) == 11_173_962 - 2 * 75 * 64
    shapes = jax.eval_shape(convnets.lenet((32, 32, 3)).init, jax.random.key(0))
    assert shapes["dense1"]["kernel"].shape == (1250, 120)


@pytest.mark.parametrize(("weight", "gain"), [("lecun", 1), ("he", 2)])
def test_scale_of_lenet_weights(weight, gain):
    model = convnets.lenet((16, 16, 3), channels=40, kernel_size=3, weight=weight)
    for layer in model.init(jax.random.key(1)).values():
        drawn, fan_in = np.asarray(layer["kernel"]), np.prod(layer["kernel"].shape[:-1])
        assert drawn.var() == pytest.approx(gain / fan_in, rel=6 / np.sqrt(drawn.size))
        assert abs(drawn.mean()) < 5 * drawn.std() / np.sqrt(drawn.size)
        np.testing.assert_array_equal(layer["bias"], 0)


@pytest.mark.parametrize("normalization", [None, "batch"])
def test_scale_of_resnet_weights(normalization):
    model = convnets.resnet18((8, 8, 3), width=4, normalization=normalization)
    init = jax.jit(model.init)
    params, again = (init(jax.random.key(seed)) for seed in (2, 2))
    kernels = 0
    for (path, leaf), other in zip(*map(jax.tree.leaves_with_path, (params, again)), strict=True):
        np.testing.assert_array_equal(leaf, other[1])
        name = path[-1].key
        if name == "kernel":
            kernels += 1
            fan_in = np.prod(leaf.shape[:-1])
            assert np.var(leaf) == pytest.approx(1 / fan_in, rel=8 / np.sqrt(leaf.size))
        else:
            np.testing.assert_array_equal(leaf, {"bias": 0, "scale": 1}[name])
    assert kernels == 21
    assert len(jax.tree.leaves(params)) == kernels + 1 + (2 * 20 if normalization else 0)


def test_a_key_gives_the_same_kernels_with_and_without_normalisation():
    drawn = []
    for normalization in (None, "batch"):
        model = convnets.resnet18((8, 8, 1), width=1, normalization=normalization)
        leaves = jax.tree.leaves_with_path(jax.jit(model.init)(jax.random.key(0)))
        drawn.append([np.ravel(leaf) for path, leaf in leaves if path[-1].key == "kernel"])
    np.testing.assert_array_equal(*map(np.concatenate, drawn))


def test_slices_of_lenet():
    x = images(7, 16, 16, 1)
    settings = {"channels": 3, "hidden": (5,)}
    params = convnets.lenet((16, 16, 1), **settings).init(jax.random.key(3))
    whole = convnets.lenet((16, 16, 1), slice_size=None, **settings).apply(params, x)
    for size in (1, 3, "auto"):
        sliced = convnets.lenet((16, 16, 1), slice_size=size, **settings).apply
        np.testing.assert_allclose(sliced(params, x), whole, atol=1e-12)


ONE = {"channels": 1, "padding": "SAME", "hidden": ()}


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("shape", "settings", "large"),
    [
        ((32, 32, 3), {}, True),
        ((16, 16, 1), {}, False),
        ((40, 40, 1), ONE | {"kernel_size": 5}, False),  # (40^2 + 20^2) 5^2 = 50,000 numbers
        ((200, 200, 1), ONE | {"kernel_size": 1}, False),  # 200^2 + 100^2 = 50,000
        ((6667, 6, 1), ONE | {"kernel_size": 1}, True),  # 6667 x 6 + 3333 x 3 = 50,001
    ],
)
def test_automatic_slices_are_for_large_images_on_a_cpu(
    monkeypatch, backend, shape, settings, large
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    model = convnets.lenet(shape, **settings)
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((16, *shape), jnp.float64)
    program = str(jax.make_jaxpr(model.apply)(params, x))
    eights = "f64[2,8,{},{},{}]".format(*shape)
    assert (eights in program) == ("scan" in program) == (large and backend == "cpu")


@pytest.mark.parametrize(
    "model",
    [
        convnets.lenet((8, 8, 1), channels=3, kernel_size=3, padding="SAME", hidden=(4,)),
        convnets.lenet((8, 8, 1), channels=3, kernel_size=3, padding="SAME", slice_size=2),
        convnets.resnet18((8, 8, 1), width=1, normalization="batch", method="direct"),
    ],
    ids=["lenet", "lenet in slices", "resnet18"],
)
def test_several_runs_at_once(model):
    x, keys = images(5, 8, 8, 1), jax.random.split(jax.random.key(4), 3)
    params = jax.jit(jax.vmap(model.init))(keys)
    together = jax.jit(jax.vmap(model.apply, (0, None)))(params, x)
    apply = jax.jit(model.apply)
    alone = [apply(jax.tree.map(lambda leaf, i=i: leaf[i], params), x) for i in range(3)]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-11)


# --- ResNet18 and its Jacobian, written out in NumPy -------------------------------------------
# A pair (h, dh) is a value and its derivative along one direction of the parameters.


def numpy_conv(h, weight, stride):
    size = weight.shape[0]
    lacking = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in h.shape[1:3]]
    h = np.pad(h, ((0, 0), *[(n // 2, n - n // 2) for n in lacking], (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(h, (size, size), (1, 2))
    return np.einsum("nhwckl,klco->nhwo", windows[:, ::stride, ::stride], weight, optimize=True)


def conv(pair, layer, tangent, stride):
    h, dh = pair
    weight, dweight = layer["conv"]["kernel"], tangent["conv"]["kernel"]
    value = numpy_conv(h, weight, stride)
    return value, numpy_conv(dh, weight, stride) + numpy_conv(h, dweight, stride)


def batch_norm(pair, layer, tangent, frozen, known=None):
    """y = g (h - mu) / s + b, s = sqrt(v + 1e-5), differentiated by hand.

    dy = dg (h - mu) / s + g [(dh - dmu) / s - (h - mu) ds / s^2] + db, with dmu = mean(dh),
    dv = 2 mean((h - mu) (dh - dmu)) and ds = dv / (2 s); frozen or known moments: dmu = ds = 0.
    """
    h, dh = pair
    axes = (0, 1, 2)
    mu = np.mean(h, axes) if known is None else known["mean"]
    v = np.mean((h - mu) ** 2, axes) if known is None else known["variance"]
    s = np.sqrt(v + 1e-5)
    dmu = ds = np.zeros_like(mu)
    if not frozen and known is None:
        dmu = np.mean(dh, axes)
        ds = 2 * np.mean((h - mu) * (dh - dmu), axes) / (2 * s)
    layer, tangent = layer["norm"], tangent["norm"]
    scale, bias = layer["scale"], layer["bias"]
    value = scale * (h - mu) / s + bias
    dnormal = (dh - dmu) / s - (h - mu) * ds / s**2
    return (value, tangent["scale"] * (h - mu) / s + scale * dnormal + tangent["bias"]), mu, v


def relu(pair):
    return np.maximum(pair[0], 0), pair[1] * (pair[0] > 0)


def numpy_resnet(params, tangent, x, normalization, statistics=None):
    """Outputs, their derivative along `tangent`, and the moments of the batch in each layer."""
    trees = (params, tangent, statistics)
    params, tangent, statistics = (jax.tree.map(np.asarray, tree) for tree in trees)
    moments = {}

    def unit(path, pair, stride):
        layer, direction, known, found = params, tangent, statistics, moments
        for name in path.split("/"):
            layer, direction, known = layer[name], direction[name], known and known[name]
            found = found.setdefault(name, {})
        pair = conv(pair, layer, direction, stride)
        if normalization:
            known, frozen = known and known["norm"], normalization == "frozen"
            pair, mu, v = batch_norm(pair, layer, direction, frozen, known)
            found["norm"] = {"mean": mu, "variance": v}
        return pair

    x = np.asarray(x)
    pair = relu(unit("stem", (x, np.zeros_like(x)), 1))
    for stage, block in itertools.product((1, 2, 3, 4), (1, 2)):
        name, shrinks = f"stage{stage}_block{block}", stage > 1 and block == 1
        stride = 2 if shrinks else 1
        inner = unit(f"{name}/conv2", relu(unit(f"{name}/conv1", pair, stride)), 1)
        outer = unit(f"{name}/shortcut", pair, stride) if shrinks else pair
        pair = relu((inner[0] + outer[0], inner[1] + outer[1]))
    h, dh = (part.mean((1, 2)) for part in pair)
    dense, ddense = params["dense"], tangent["dense"]
    outputs = h @ dense["kernel"] + dense["bias"]
    return outputs, dh @ dense["kernel"] + h @ ddense["kernel"] + ddense["bias"], moments


def resnet_problem(normalization, shape=(9, 8, 2), seed=0):
    settings = {"normalization": normalization, "method": "direct"}  # The quicker to compile.
    model = convnets.resnet18(shape, width=2, classes=3, **settings)
    params = perturbed(jax.jit(model.init)(jax.random.key(seed)), seed, scale=0.1)
    return model, params, direction(params), images(4, *shape, seed=seed)


def pushforward(f, params, tangent):
    return jax.jit(lambda p, v: jax.jvp(f, (p,), (v,)))(params, tangent)


@pytest.mark.parametrize("normalization", [None, "batch", "frozen"])
def test_resnet_and_its_linearisation_are_those_derived_by_hand(normalization):
    model, params, tangent, x = resnet_problem(normalization)
    outputs, derivative, _ = numpy_resnet(params, tangent, x, normalization)
    value, pushed = pushforward(lambda p: model.apply(p, x), params, tangent)
    np.testing.assert_allclose(value, outputs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pushed, derivative, rtol=1e-10, atol=1e-10)
    proxy = jax.jit(linearize(model.apply, params))(tree_add(params, tangent), x)
    np.testing.assert_allclose(proxy, outputs + derivative, rtol=1e-10, atol=1e-10)
    u = np.random.default_rng(5).normal(size=outputs.shape)
    pull = jax.jit(lambda p, u: jacobian_products(model.apply, p, x).vjp(u))
    pulled = jax.tree.map(np.vdot, pull(params, jnp.asarray(u)), tangent)
    assert sum(jax.tree.leaves(pulled)) == pytest.approx(np.vdot(u, derivative), rel=1e-10)


def test_frozen_normalization_differs_in_the_derivative_alone():
    (model, params, tangent, x), (frozen, *_) = map(resnet_problem, ("batch", "frozen"))
    value, pushed = pushforward(lambda p: model.apply(p, x), params, tangent)
    same, differently = pushforward(lambda p: frozen.apply(p, x), params, tangent)
    np.testing.assert_allclose(same, value, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(differently - pushed) > 0.1 * np.linalg.norm(pushed)


def running_after(model, moments):
    """Running statistics after one batch of these moments."""
    return jax.tree.map(
        lambda old, new: 0.9 * old + 0.1 * new, model.normalization.initial, moments
    )


@pytest.mark.parametrize("normalization", ["batch", "frozen"])
def test_running_statistics_follow_the_moments_at_the_anchor(normalization):
    model, anchor, tangent, x = resnet_problem(normalization)
    outputs, derivative, moments = numpy_resnet(anchor, tangent, x, normalization)

    @jax.jit
    def with_statistics(params):
        return model.normalization.apply(params, model.normalization.initial, x)

    value, jvp, statistics = jax.linearize(with_statistics, anchor, has_aux=True)
    np.testing.assert_allclose(value, outputs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(jvp(tangent), derivative, rtol=1e-10, atol=1e-10)
    expected = running_after(model, moments)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12),
        statistics,
        expected,
    )
    # Moving theta away from the anchor moves nothing to first order.
    _, moved = pushforward(lambda p: with_statistics(p)[1], anchor, tangent)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moved))
    assert jax.tree.structure(model.normalization.initial) == jax.tree.structure(statistics)
    # Their own statistics turn evaluation into training mode.
    evaluated = model.normalization.evaluate(anchor, jax.tree.map(jnp.asarray, moments), x)
    np.testing.assert_allclose(evaluated, outputs, rtol=1e-10, atol=1e-10)


def test_a_module_that_normalises_keeps_running_moments_of_momentum_0_9():
    norm, h, other = BatchNorm(2, frozen=False), images(3, 4, 5, 2), images(2, 4, 5, 2, seed=1)
    mean, variance = 0.0, 1.0
    for batch in (other, h):
        found = np.asarray(norm(batch))
        np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-12)
        np.testing.assert_allclose(found.var((0, 1, 2)), 1, atol=1e-4)
        mean = 0.9 * mean + 0.1 * np.mean(batch, (0, 1, 2))
        variance = 0.9 * variance + 0.1 * np.var(batch, (0, 1, 2))
    np.testing.assert_allclose(norm.mean[...], mean, atol=1e-12)
    np.testing.assert_allclose(norm.variance[...], variance, atol=1e-12)


@pytest.mark.parametrize(("outputs", "stride"), [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_a_block_has_a_shortcut_where_it_changes_the_shape(outputs, stride):
    block = Block(2, outputs, stride, normalization=None, method="direct")
    assert (block.shortcut is not None) == (outputs != 2 or stride != 1)
    made = jax.eval_shape(block, jax.ShapeDtypeStruct((1, 6, 4, 2), jnp.float64))
    assert made.shape == (1, 6 // stride, 4 // stride, outputs)


@pytest.mark.parametrize("normalization", ["batch", "frozen"])
def test_evaluation_uses_the_running_statistics(normalization):
    model, params, tangent, x = resnet_problem(normalization)
    other = images(3, 9, 8, 2, seed=7)
    _, running = model.normalization.apply(params, model.normalization.initial, other)
    outputs, derivative, _ = numpy_resnet(params, tangent, x, normalization, running)
    evaluate = model.normalization.evaluate
    value, pushed = pushforward(lambda p: evaluate(p, running, x), params, tangent)
    np.testing.assert_allclose(value, outputs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pushed, derivative, rtol=1e-10, atol=1e-10)


def test_only_training_mode_couples_the_examples():
    model, params, _, x = resnet_problem("batch")  # In value, "frozen" is the same function.
    with pytest.raises(ValueError, match="couples its examples"):
        require_independent(jax.jit(model.apply), params, x)
    initial, evaluate = model.normalization.initial, jax.jit(model.normalization.evaluate)
    require_independent(lambda p, x: evaluate(p, initial, x), params, x)
    assert convnets.resnet18((8, 8, 1), width=1).normalization is None


@pytest.mark.parametrize(
    ("network", "shape", "settings", "message"),
    [
        ("lenet", (32, 32), {}, r"input_shape must be \(height, width, channels\), got \(32, 32\)"),
        ("lenet", 32, {}, "input_shape must be a sequence of positive integers, got 32"),
        ("lenet", (32, 32, 0), {}, r"input_shape must be a sequence of .* got \(32, 32, 0\)"),
        ("lenet", (32, 32, 3), {"channels": 0}, "channels must be a positive integer, got 0"),
        ("lenet", (32, 32, 3), {"classes": 2.5}, "classes must be a positive integer, got 2.5"),
        ("lenet", (32, 32, 3), {"kernel_size": -1}, "kernel_size must be a positive integer"),
        ("lenet", (32, 32, 3), {"hidden": (8, 0)}, r"hidden must be a sequence .* got \(8, 0\)"),
        ("lenet", (32, 32, 3), {"hidden": 120}, "hidden must be a sequence .* got 120"),
        ("lenet", (32, 32, 3), {"padding": "FULL"}, "unknown padding 'FULL'; allowed: SAME, VALID"),
        ("lenet", (32, 32, 3), {"weight": "xavier"}, "unknown weight 'xavier'; allowed: he, lecun"),
        ("lenet", (32, 32, 3), {"method": "fft"}, "unknown method 'fft'"),
        ("lenet", (32, 32, 3), {"slice_size": 0}, "slice_size must be a positive integer, got 0"),
        ("lenet", (8, 8, 1), {}, "8 x 8 is too small for two 5 x 5 convolutions"),
        ("lenet", (15, 16, 1), {}, "15 x 16 is too small for two 5 x 5 convolutions"),
        ("lenet", (16, 8, 1), {}, "16 x 8 is too small for two 5 x 5 convolutions"),
        ("lenet", (4, 3, 1), {"padding": "SAME"}, "4 x 3 is too small for two 5 x 5"),
        ("resnet18", (32, 32, 3), {"width": 0}, "width must be a positive integer, got 0"),
        (
            "resnet18",
            (32, 32, 3),
            {"normalization": "layer"},
            "unknown normalization 'layer'; allowed: None, batch, frozen",
        ),
        ("resnet18", (32, 32, 3), {"method": "fft"}, "unknown method 'fft'"),
        ("resnet18", (32, 7, 3), {}, "an image of 32 x 7 is too small: 8 x 8 at least"),
    ],
)
def test_bad_settings_are_refused(network, shape, settings, message):
    with pytest.raises(ValueError, match=message):
        bare(getattr(convnets, network))(shape, **settings)
