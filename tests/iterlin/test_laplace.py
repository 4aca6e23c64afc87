"""The Laplace posterior is the Gaussian process with the NTK, and the dense posterior otherwise."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from iterlin import laplace, losses
from problems import bare, compilations, dense, flat, network, normal, paired, single
from refusals import fails, refused
from scipy.stats import multivariate_normal

# More outputs than parameters, and fewer; where J does not fit, the kernel is decomposed.
SIZE = 24 * 45 * 8  # of J, in bytes
PROBLEMS = {"primal": ((2, 2, 3), 9999), "dual": ((3, 6, 3), SIZE), "kernel": ((3, 6, 3), SIZE - 1)}
SETTINGS = {"loss": losses.squared_error, "prior_precision": 1.0}

fit = partial(laplace, **SETTINGS)


def posed(widths, examples=8):
    f, params, x, y = network(widths, examples=examples)
    return f, params, x, y, normal(3, widths[0])


def dense_posterior(f, params, x, blocks, precision):
    rows = dense(f, params, x).reshape(*blocks.shape[:2], -1)
    return np.einsum("nop,noq,nqr->pr", rows, blocks, rows) + precision * np.eye(rows.shape[-1])


@pytest.mark.parametrize(("widths", "limit"), PROBLEMS.values(), ids=PROBLEMS)
def test_the_squared_error_gives_the_gaussian_process_with_the_ntk(widths, limit):
    """y ~ N(f + J (m - theta), J J^T / delta + s^2 I) for a prior of mean m."""
    f, params, x, y, x_new = posed(widths)
    precision, noise = 0.7, 0.09
    train, test = dense(f, params, x), dense(f, params, x_new)
    data = train @ train.T / precision + noise * np.eye(len(train))
    cross = test @ train.T / precision
    covariance = test @ test.T / precision - cross @ np.linalg.solve(data, cross.T)
    settings = {"prior_precision": precision, "noise_variance": noise, "memory_limit": limit}
    posterior = fit(f, params, x, y, prior_mean=params if limit == SIZE else None, **settings)
    assert posterior.dual == (limit == SIZE - 1)
    narrow = lambda p, x: f(p, x).astype("float32")  # noqa: E731  (rows of J are of the wider type)
    assert fit(narrow, params, x, y, **settings).dual == posterior.dual
    squared = np.linalg.svd(train, compute_uv=False) ** 2
    np.testing.assert_allclose(np.sort(posterior.eigenvalues)[::-1], squared, atol=1e-10)
    expected = np.stack([covariance[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(3)])
    np.testing.assert_allclose(posterior.variance(x_new), expected, atol=1e-10)
    mean = np.ravel(f(params, x)) - (0 if limit == SIZE else train @ flat(params))
    evidence = multivariate_normal(mean, data).logpdf(np.ravel(y))
    assert float(posterior.log_marginal_likelihood()) == pytest.approx(evidence, rel=1e-9)


def variances(f, params, x_new, precision):
    """J P^-1 J^T of each new example, by its outputs."""
    rows = dense(f, params, x_new)
    rows = rows.reshape(len(jax.tree.leaves(x_new)[0]), -1, rows.shape[1])
    return np.einsum("mop,pq,mrq->mor", rows, np.linalg.inv(precision), rows)


@pytest.mark.parametrize(
    ("widths", "limit", "structure"),
    [*((*each, "full") for each in PROBLEMS.values()), ((2, 4, 3), 2 * 3 * 27 * 8, "diagonal")],
    ids=[*PROBLEMS, "diagonal"],
)
def test_cross_entropy_gives_the_dense_posterior(widths, limit, structure):
    """Of the diagonal structure with a diagonal precision, in slices."""
    f, params, x, y, x_new = posed(widths)
    labels = jnp.argmax(y, 1)
    p = np.asarray(jax.nn.softmax(f(params, x)))
    blocks = np.stack([np.diag(q) - np.outer(q, q) for q in p])
    precision = dense_posterior(f, params, x, blocks, 0.2)
    precision = np.diag(np.diag(precision)) if structure == "diagonal" else precision
    settings = {"prior_precision": 0.2, "memory_limit": limit, "structure": structure}
    posterior = fit(f, params, x, labels, loss=losses.cross_entropy, **settings)
    expected = variances(f, params, x_new, precision)
    np.testing.assert_allclose(posterior.variance(x_new), expected, atol=1e-10)
    # Likelihood and prior at params, and the volume of the Gaussian around them.
    theta = flat(params)
    log_prior = -0.1 * theta @ theta + 0.5 * len(theta) * np.log(0.2 / (2 * np.pi))
    log_integral = -0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1]
    likelihood = np.sum(np.log(p[np.arange(8), labels]))
    found = float(posterior.log_marginal_likelihood())
    assert found == pytest.approx(likelihood + log_prior + log_integral, rel=1e-9)


def test_a_prior_is_replaced_without_starting_again():
    widths, limit = PROBLEMS["kernel"]
    f, params, x, y, x_new = posed(widths)
    posterior = fit(f, params, x, y, memory_limit=limit)
    prior = {"prior_precision": 0.1, "noise_variance": 0.5}
    anew, replaced = fit(f, params, x, y, memory_limit=limit, **prior), posterior._replace(**prior)
    np.testing.assert_allclose(replaced.variance(x_new), anew.variance(x_new), rtol=1e-12)
    assert float(replaced.log_marginal_likelihood()) == float(anew.log_marginal_likelihood())
    single = posterior._replace(prior_precision=np.float32(0.5), noise_variance=np.float32(3))
    double = posterior._replace(prior_precision=0.5, noise_variance=3.0)
    assert float(single.log_marginal_likelihood()) == float(double.log_marginal_likelihood())
    for by in (posterior, fit(f, params, x, y)):
        by.variance(x_new)
        with compilations() as found:
            by._replace(prior_precision=0.2, noise_variance=0.7).variance(x_new)
        assert not found

    def evidence(precision):
        return posterior._replace(prior_precision=precision).log_marginal_likelihood()

    change = (evidence(1.0 + 1e-5) - evidence(1.0 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(evidence)(1.0), change, rtol=1e-6)


@pytest.mark.parametrize(
    ("out", "examples", "limit"),
    [((), 12, 144), ((2, 2), 2, 2**28), ((2, 2), 2, 180)],
    ids=["primal, in slices", "dual", "kernel"],
)
def test_pytrees_outputs_of_any_rank_and_fixed_parameters(out, examples, limit):
    f, params, x, y = paired(out, examples=examples)
    _, _, x_new, _ = paired(out, seed=1, examples=2)

    last = lambda moving, x: f({**params, "out": moving}, x)  # noqa: E731
    settings = {"prior_mean": jax.tree.map(jnp.ones_like, params), "prior_precision": 0.5}
    settings |= {"trainable": lambda path: path == "out", "memory_limit": limit}
    posterior = fit(f, params, x, y, **settings)
    size = int(np.prod(out))
    assert posterior.dual == (limit == 180)
    blocks = np.stack([np.eye(size)] * examples)
    precision = dense_posterior(last, params["out"], x, blocks, 0.5)
    expected = variances(last, params["out"], x_new, precision).reshape(2, *out, *out)
    np.testing.assert_allclose(posterior.variance(x_new), expected, atol=1e-11)
    rows = dense(last, params["out"], x)
    mean = np.ravel(f(params, x)) - rows @ (flat(params["out"]) - 1)
    spread = multivariate_normal(mean, rows @ rows.T / 0.5 + np.eye(len(rows)))
    evidence = spread.logpdf(np.ravel(y))
    assert float(posterior.log_marginal_likelihood()) == pytest.approx(evidence, rel=1e-9)


def test_the_kronecker_structure_is_exact_for_a_linear_layer():
    _, _, x, y, x_new = posed((3, 3))
    f = lambda p, x: x @ p["weight"] + p["bias"][None]  # noqa: E731
    params = {"weight": normal(3, 3, seed=1), "bias": jnp.ones(3)}
    x = x - x.mean(0, keepdims=True)  # so that weight and bias do not meet in J^T J
    noisy = partial(fit, f, x=x, y=y, noise_variance=0.3)
    full, found = noisy(params=params), noisy(params=params, structure="kronecker")
    np.testing.assert_allclose(found.variance(x_new), full.variance(x_new), atol=1e-12)
    # At the mode the Laplace approximation of the evidence is exact, too.
    rows = dense(f, params, x)
    matrix = rows.T @ rows + 0.3 * np.eye(rows.shape[1])
    offset = np.ravel(f(params, x)) - rows @ flat(params)
    mode = np.linalg.solve(matrix, rows.T @ (np.ravel(y) - offset))
    _, unravel = jax.flatten_util.ravel_pytree(params)
    best = unravel(jnp.asarray(mode))
    evidence = noisy(params=best).log_marginal_likelihood()
    found = noisy(params=best, structure="kronecker").log_marginal_likelihood()
    assert float(found) == pytest.approx(float(evidence), rel=1e-9)


def test_the_kronecker_structure_keeps_the_diagonal_in_the_basis_of_its_factors():
    f, params, x, y, x_new = posed((2, 4, 3), examples=8)
    rows, leaves = dense(f, params, x), jax.tree.leaves(params)
    ends, precision = np.cumsum([leaf.size for leaf in leaves])[:-1], []
    for part, leaf in zip(np.split(rows, ends, 1), leaves, strict=True):
        r = part.reshape(len(part), len(leaf), -1)
        left = np.linalg.eigh(np.einsum("nij,nkj->ik", r, r))[1]
        right = np.linalg.eigh(np.einsum("nij,nik->jk", r, r))[1]
        basis = np.kron(left, right)
        precision.append(basis * np.diag(basis.T @ (part.T @ part) @ basis) @ basis.T)
    precision = scipy.linalg.block_diag(*precision) + np.eye(rows.shape[1])
    found = fit(f, params, x, y, structure="kronecker").variance(x_new)
    np.testing.assert_allclose(found, variances(f, params, x_new, precision), atol=1e-11)


@pytest.mark.parametrize("out", [(3,), (2, 3)])
def test_class_probabilities_average_the_softmax_of_normal_logits(out):
    f, params, x, y = paired(out)
    labels, x_new = jnp.argmax(y, -1).at[0].set(-100), paired(out, seed=1, examples=2)[2]
    loss = partial(losses.cross_entropy, ignore=-100)
    posterior = fit(f, params, x, labels, loss=loss, prior_precision=0.5)
    mean, size = f(params, x_new), int(np.prod(out))
    covariance = np.asarray(posterior.variance(x_new)).reshape(2, size, size)
    variances = np.stack([np.diag(c) for c in covariance]).reshape(mean.shape)
    probit = jax.nn.softmax(mean / np.sqrt(1 + np.pi / 8 * variances))
    np.testing.assert_allclose(posterior.probabilities(x_new), probit, atol=1e-12)
    rng = np.random.default_rng(0)
    pairs = zip(np.reshape(mean, (2, -1)), covariance, strict=True)
    drawn = np.stack([rng.multivariate_normal(m, c, 20000).reshape(-1, *out) for m, c in pairs])
    expected = np.asarray(jax.nn.softmax(drawn)).mean(1)
    found = posterior.probabilities(x_new, key=jax.random.key(0), num_samples=20000)
    np.testing.assert_allclose(found, expected, atol=0.02)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)
    for other in (losses.squared_error, partial(losses.squared_error)):
        fails("probabilities need the loss", fit(f, params, x, y, loss=other).probabilities, x_new)


@pytest.mark.parametrize(("examples", "precision", "noise"), [(100, 1e-4, 1e-2), (8, 1e-5, 1e-4)])
def test_nothing_is_squared_in_float32(examples, precision, noise):
    """Eigenvalues of J^T J below eps times the largest decide here, and are right."""
    f, params, x, _, _ = posed((2, 16, 1), examples)
    params, points = single(params), jnp.concatenate([x[:8], 10 * x[:3]])
    settings = {"prior_precision": precision, "noise_variance": noise}
    exact = fit(f, optax.tree.cast(params, float), x, x[:, :1], **settings)
    found = fit(f, params, single(x), single(x[:, :1]), **settings)
    assert not found.dual
    assert found.eigenvalues.dtype == jnp.float32
    # Rounding, which differs between processors, is below a hundredth; squared, above a half.
    np.testing.assert_allclose(found.variance(single(points)), exact.variance(points), rtol=3e-2)
    ours, theirs = found.log_marginal_likelihood(), exact.log_marginal_likelihood()
    np.testing.assert_allclose(ours, theirs, atol=0.05)


def test_a_kernel_that_is_too_coarse_is_warned_of():
    f, params, x, _, _ = posed((2, 16, 1))
    x = jnp.concatenate([x[:4], x[:4]])  # so that eigenvalues vanish but for rounding
    posterior = fit(f, single(params), single(x), single(x[:, :1]), memory_limit=2000)
    assert posterior.dual
    bound = float(jnp.finfo(jnp.float32).eps * jnp.max(posterior.eigenvalues))
    posterior = posterior._replace(prior_precision=20 * bound, noise_variance=0.051)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.log_marginal_likelihood()
    coarse = posterior._replace(noise_variance=0.049)
    for call in (lambda: coarse.variance(single(x)), coarse.log_marginal_likelihood):
        with pytest.warns(UserWarning, match="float32 does not resolve the kernel"):
            assert np.all(np.isfinite(call()))


PROBLEM = dict(zip(("f", "params", "x", "y"), network((2, 2, 2), examples=3), strict=True))
test_bad_input_is_refused = refused(
    lambda change: bare(laplace)(**PROBLEM | SETTINGS | change),
    ({"prior_precision": 0.0}, "prior_precision must be finite and positive, got"),
    ({"structure": "kfac"}, "unknown structure 'kfac'; allowed: diagonal, full, kronecker"),
    ({"loss": "mse"}, r"loss must be a function of \(outputs, targets\), got 'mse'"),
    ({"loss": losses.mean(losses.squared_error)}, "loss must be a sum over the examples"),
    ({"loss": lambda o, y: jnp.mean((o - y) ** 2)}, "loss must be a sum .* it is 1 times"),
    ({"loss": lambda o, y: -jnp.sum((o - y) ** 2)}, "loss must be convex and curved"),
    ({"prior_mean": jnp.zeros(3)}, "prior_mean must be a pytree of structure"),
    ({"y": jnp.ones((2, 2))}, "inputs and targets differ in their numbers"),
)


def test_a_loss_may_weigh_each_example():
    weights = jnp.asarray([[1.0], [4.0], [9.0]])
    found = fit(**PROBLEM, loss=lambda o, y: 0.5 * jnp.sum(weights * (o - y) ** 2))
    f, params, x, _ = PROBLEM.values()
    scaled = dense(lambda p, x: jnp.sqrt(weights) * f(p, x), params, x)
    precision = scaled.T @ scaled + np.eye(scaled.shape[1])
    np.testing.assert_allclose(found.variance(x), variances(f, params, x, precision), atol=1e-10)


@pytest.mark.parametrize("margin", [15.0, 1000.0])
def test_a_confident_classifier_has_the_variance_of_its_prior(margin):
    """There the Hessian of the cross-entropy is zero up to rounding, which is not concave."""
    x, y = jnp.eye(3, dtype=jnp.float32), jnp.arange(3)
    bayes = {"loss": losses.cross_entropy, "prior_precision": 2.0}
    found = laplace(lambda p, x: x @ p, margin * x, x, y, **bayes)
    np.testing.assert_allclose(found.variance(x), 3 * [np.eye(3) / 2], atol=1e-5)


def test_a_bad_replacement_and_examples_of_another_shape_are_refused():
    posterior = fit(**PROBLEM)
    classifier = posterior._replace(loss=losses.cross_entropy)
    for call in (posterior.variance, classifier.probabilities):
        fails(r"an example of x_new must have shape .*got \(5,\)", call, jnp.ones((2, 5)))
    for precision in (-1.0, jnp.ones(2)):
        bad = posterior._replace(prior_precision=precision)
        fails("prior_precision must be", bad.variance, PROBLEM["x"])
        fails("prior_precision must be", bad.log_marginal_likelihood)
