"""The Laplace approximation for the linearised network: predictions and evidence.

The prior of the parameters is a Gaussian of precision delta, and the log-likelihood is -loss / s^2.
The posterior of the linearised network at params is then the Gaussian of precision
J^T H J / s^2 + delta I (MacKay 1992; Immer, Korzepa & Bauer 2021). For the squared error this is
exact, and the predictions are those of the Gaussian process with the kernel J J^T / delta (Khan et
al. 2019).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iterlin.curvature.products import largest_coupling, loss_hessian_blocks
from iterlin.kernels.ntk import ntk_matrix
from iterlin.linearise import examples
from iterlin.linearise.compiled import SharedJit, as_argument
from iterlin.linearise.decomposition import ASPECT, thin_svd
from iterlin.linearise.devices import on_any_device, to_array
from iterlin.linearise.krylov import dot
from iterlin.linearise.linearization import (
    Network,
    check_finite_examples,
    jacobian_rows,
    output_shape,
    require_independent,
)
from iterlin.linearise.parameters import Trainable, bind_fixed, partition, trainable_mask
from iterlin.linearise.precision import full_precision
from iterlin.linearise.slices import Sliced, fold_slices, in_slices, sum_over_slices
from iterlin.linearise.validation import (
    check_float32_or_wider,
    check_one_of,
    check_positive,
    check_positive_integer,
    check_random_key,
    check_same_tree,
    is_traced,
    warn_user,
)
from iterlin.training.losses import Loss, Mean, as_sum, check_loss, squared_error


class Laplace(NamedTuple):
    """Gaussian posterior of the trained parameters, of covariance (J^T H J / s^2 + delta I)^-1.

    `laplace` makes it. prior_precision and noise_variance may be replaced, at no cost, and
    differentiated: ``posterior._replace(prior_precision=0.1).log_marginal_likelihood()``.

    Below, W = H^(1/2) J = U S V^T is the weighted Jacobian (N O, P), of rank at most R. For the
    structures "diagonal" and "kronecker" V is an orthogonal basis of the parameters, in which
    W^T W is replaced by its diagonal S^2.

    Attributes:
        prior_precision: Precision delta of the prior.
        noise_variance: Noise variance or temperature s^2.
        eigenvalues: Squared singular values S^2 of W, (R,), or the diagonal (P,).
        dual: Whether the kernel W W^T was decomposed, and not W.
        project: Function from M inputs to a pair (coordinates, grams) of arrays (M, O, R) and
            (M, O, O). If dual is False, coordinates are those of the rows of J at the inputs in V,
            and grams the products of what is orthogonal to V. If dual is True, coordinates are
            U^T W j for each row j, and grams the products of the rows.
        projected_residual: U^T r, (R,), for the residuals r of the linearised network at the mean
            of the prior; zero unless the evidence is exact.
        misfit: ||r - U U^T r||^2 if the evidence is exact, otherwise twice the loss at params.
        squared_distance: ||params - prior_mean||^2; 0 if the evidence is exact.
        output_shape: Shape of the outputs of one example.
        num_observations: N O for the squared error, 0 for another loss. It multiplies the
            normalisation log(2 pi s^2) of the likelihood.
        outputs: Function from M inputs to the outputs (M, ...) of the network at params.
        loss: The loss.
    """

    prior_precision: Any
    noise_variance: Any
    eigenvalues: Float[Array, " R"]
    dual: bool
    project: Callable[[PyTree], tuple[Array, Array]]
    projected_residual: Float[Array, " R"]
    misfit: Float[Array, ""]
    squared_distance: Float[Array, ""]
    output_shape: tuple[int, ...]
    num_observations: int
    outputs: Callable[[PyTree], Array]
    loss: Loss

    @on_any_device
    def variance(self, x_new: PyTree) -> Float[Array, "..."]:
        """Return the predictive covariance of the network's outputs at new inputs.

        It does not contain the noise of the observations.

        Args:
            x_new: Inputs of M examples, shaped as those of x. The memory needed is
                M O min(P, N O) numbers, or M O P with another structure than the full one: for
                many inputs, call this function on a few at a time.

        Returns:
            The covariance ``(M, *out, *out)`` of the outputs ``(M, *out)``, in squared units of
            the outputs.

        Raises:
            ValueError: If the examples are not shaped as those of x, or a replaced prior_precision
                or noise_variance is not positive and finite.

        Warns:
            UserWarning: If the kernel is too coarse in its precision (see `laplace`).
        """
        examples.num_examples(x_new, "x_new")
        return SharedJit(self._checked()._covariance)(x_new)

    def _covariance(self, x_new):
        coordinates, grams = self.project(x_new)
        inner = jnp.einsum("mir,r,mjr->mij", coordinates, self._weights(), coordinates)
        delta, noise = self.prior_precision, self.noise_variance
        found = (grams - inner) / delta if self.dual else grams / delta + noise * inner
        return found.reshape(len(found), *self.output_shape, *self.output_shape)

    @on_any_device
    def probabilities(
        self, x_new: PyTree, *, key: Array | None = None, num_samples: int = 1000
    ) -> Float[Array, "..."]:
        """Return the class probabilities at new inputs, averaged over the posterior.

        The logits of an example are normal, with the outputs at params as mean and the covariance
        of `variance`. Their softmax is averaged over samples if there is a key. Otherwise it is
        approximated by the softmax of f / sqrt(1 + pi/8 v), for the mean f and the variance v of
        each logit (the probit approximation; MacKay 1992, The evidence framework applied to
        classification networks).

        Args:
            x_new: Inputs of M examples, as of `variance`.
            key: PRNG key of the samples; None for the probit approximation.
            num_samples: Number of samples of the logits of an example.

        Returns:
            Probabilities ``(M, *out)``. They sum to 1 over the last axis.

        Raises:
            ValueError: If the loss is not `losses.cross_entropy`, and as `variance`.
        """
        if as_sum(self.loss) in (None, squared_error):
            raise ValueError(f"probabilities need the loss losses.cross_entropy, got {self.loss!r}")
        check_positive_integer("num_samples", num_samples)
        if key is not None:
            check_random_key("key", key)
        examples.num_examples(x_new, "x_new")
        return SharedJit(partial(self._checked()._softmax, num_samples))(x_new, key)

    def _softmax(self, num_samples, x_new, key):
        covariance, classes = self._covariance(x_new), self.output_shape[-1]
        logits = self.outputs(x_new)
        covariance = covariance.reshape(len(logits), -1, classes, logits[0].size)
        # The covariance of the classes of each label, (M, labels, O, O).
        places = covariance.reshape(*covariance.shape[:3], -1, classes)
        blocks = jnp.einsum("mscsd->mscd", places)
        if key is None:
            variances = jnp.diagonal(blocks, axis1=2, axis2=3).reshape(logits.shape)
            return jax.nn.softmax(logits / jnp.sqrt(1 + math.pi / 8 * variances))
        shape = (num_samples, *blocks.shape[:3])
        normal = jax.random.normal(key, shape, blocks.dtype)
        noise = jnp.einsum("mscd,kmsd->kmsc", _square_roots(blocks), normal)
        samples = jax.nn.softmax(logits[None] + noise.reshape(num_samples, *logits.shape))
        return jnp.mean(samples, 0)

    @full_precision()
    def log_marginal_likelihood(self) -> Float[Array, ""]:
        """Return the evidence log p(y) of the linearised network.

        For the squared error and the structure "full" it is exact, at any params. Otherwise it is
        the Laplace approximation, which takes params for the mode of the posterior: the minimum of
        loss / s^2 + delta/2 ||params - prior_mean||^2. A factor that normalises exp(-loss / s^2) in
        y is then left out (for the cross-entropy it is 1).

        Source: MacKay (1992), Bayesian interpolation; Immer, Bauer et al. (2021), Scalable marginal
        likelihood estimation for model selection in deep learning.

        Raises:
            ValueError: If a replaced prior_precision or noise_variance is not positive and finite.

        Warns:
            UserWarning: If the kernel is too coarse in its precision (see `laplace`).
        """
        arrays = self._checked()
        delta, noise = arrays.prior_precision, arrays.noise_variance
        fit = delta * jnp.sum(arrays._weights() * self.projected_residual**2) + self.misfit / noise
        log_determinant = jnp.sum(jnp.log1p(self.eigenvalues / (noise * delta)))
        normalisation = self.num_observations * jnp.log(2 * math.pi * noise)
        return -0.5 * (fit + delta * self.squared_distance + log_determinant + normalisation)

    def _weights(self) -> Float[Array, " R"]:
        """Return 1 / (S^2 + s^2 delta)."""
        return 1 / (self.eigenvalues + self.noise_variance * self.prior_precision)

    def _checked(self) -> "Laplace":
        """Return the posterior with precisions of its type, arguments of a compiled program.

        They are checked, with a warning if rounding of the kernel dominates them.
        """
        delta, noise = self.prior_precision, self.noise_variance
        _check_precisions(delta, noise)
        if self.dual:
            eps = jnp.finfo(self.eigenvalues.dtype).eps
            coarse = eps * jnp.max(self.eigenvalues) > noise * delta
            if not is_traced(coarse) and jnp.any(coarse):
                warn_user(
                    f"{self.eigenvalues.dtype} does not resolve the kernel down to noise_variance "
                    "* prior_precision: variances may be wrong, even negative. Compute in float64 "
                    "(jax_enable_x64), or give `laplace` a memory_limit that holds the Jacobian"
                )
        delta, noise = (as_argument(number, self.eigenvalues.dtype) for number in (delta, noise))
        return self._replace(prior_precision=delta, noise_variance=noise)


@on_any_device
def laplace(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    loss: Loss,
    prior_precision: float | Array,
    noise_variance: float | Array = 1.0,
    prior_mean: PyTree | None = None,
    structure: Literal["full", "diagonal", "kronecker"] = "full",
    trainable: Trainable = None,
    memory_limit: int = 2**28,
) -> Laplace:
    """Return the Laplace approximation of the posterior, for the network linearised at params.

    The weighted Jacobian W = H^(1/2) J (N O, P) is decomposed by singular values, which does not
    square its condition number. If N O >= P, a QR decomposition first reduces it to (P, P), slice
    by slice. If N O < P and W does not fit `memory_limit`, the kernel W W^T (N O, N O) is
    decomposed instead. The kernel takes less memory, but variances below
    eps J J^T / prior_precision are lost to rounding. A warning is given if they matter: if
    noise_variance prior_precision is below eps times the kernel's largest eigenvalue.

    For networks of which neither fits, two structures replace J^T H J by an approximation. Rows of
    J are then taken for a few examples at a time, and no matrix of all parameters is formed:

    - "diagonal" keeps the diagonal.
    - "kronecker" keeps, for each array of parameters, the diagonal in the eigenbasis of a Kronecker
      product of two factors, as EKFAC does (George et al. 2018). The factors are sum R R^T and
      sum R^T R over the rows R of W, shaped as the array, whose axes are divided in two groups. A
      vector of parameters keeps its full block. Memory holds the factors.

    Source: MacKay (1992), Bayesian interpolation; Immer, Korzepa & Bauer (2021), Improving
    predictions of Bayesian neural nets via local linearization.

    Args:
        f: The network, f(params, x), with outputs (N, ...).
        params: The parameters to expand at.
        x: Inputs of N examples.
        y: Targets of N examples, as the loss takes them.
        loss: Function of (outputs, y). loss / noise_variance is the negative log-likelihood. The
            loss must be a sum over the examples and convex in the outputs, as
            `losses.squared_error` and `losses.cross_entropy` are, also with options.
        prior_precision: Precision delta of the Gaussian prior. It corresponds to a penalty
            delta/2 ||theta - prior_mean||^2 in training.
        noise_variance: For the squared error the variance of the observations, in squared units of
            the outputs; a temperature for other losses.
        prior_mean: Mean of the prior, a pytree like params; None for 0.
        structure: "full", "diagonal" or "kronecker".
        trainable: Which parameters are uncertain (`parameters.partition`); None for all.
        memory_limit: Bytes for the rows of J that are kept at a time. The matrix that is decomposed
            comes in addition.

    Returns:
        The posterior, with methods for the predictive variance, for class probabilities and for
        the evidence.

    Raises:
        ValueError: If prior_precision or noise_variance is not positive and finite; if structure
            is another word; if the loss is not a function, is a mean, couples its examples or is
            not convex; if f couples its examples (couplings and convexity are not checked under
            tracing); if x and y differ in their numbers of examples, or the loss does not accept y;
            if the trained parameters are narrower than float32, or there are none; if prior_mean is
            not like params; or if memory_limit is not a positive integer or is too small for the
            kernel (`empirical_ntk`).

    >>> f, x, y = lambda p, x: x @ p, jnp.eye(2), jnp.array([1.0, 3.0])
    >>> model = {"loss": il.losses.squared_error, "prior_precision": 1.0}
    >>> posterior = il.laplace(f, jnp.zeros(2), x, y, noise_variance=0.25, **model)
    >>> print(posterior.variance(2 * x).round(3), posterior.log_marginal_likelihood().round(3))
    [0.8 0.8] -6.061
    """
    _check_precisions(prior_precision, noise_variance)
    check_positive_integer("memory_limit", memory_limit)
    check_one_of("structure", structure, ("full", "diagonal", "kronecker"))
    examples.num_examples((x, y), "inputs and targets")
    if isinstance(loss, Mean):
        raise ValueError("loss must be a sum over the examples: pass what `losses.mean` was given")
    mask = trainable_mask(params, trainable)
    moving, fixed = partition(params, mask)
    moving = jax.tree.map(to_array, moving)
    dtype = jnp.result_type(*jax.tree.leaves(moving))
    check_float32_or_wider("params", dtype)
    network = bind_fixed(f, fixed)
    require_independent(network, moving, x)
    displacement = moving
    if prior_mean is not None:
        check_same_tree("prior_mean", prior_mean, params)
        mean = jax.tree.map(lambda chosen, leaf: leaf if chosen else None, mask, prior_mean)
        displacement = jax.tree.map(lambda a, b: (a - b).astype(a.dtype), moving, mean)

    shape = output_shape(network, moving, x)
    check_loss(loss, shape, y)
    check_finite_examples(network, moving, x)
    size = sum(leaf.size for leaf in jax.tree.leaves(moving))
    example_bytes = math.prod(shape.shape[1:]) * size * dtype.itemsize
    dual = structure == "full" and shape.size < size
    dual = dual and shape.shape[0] * example_bytes > memory_limit
    sliced = in_slices(network, max(1, memory_limit // example_bytes))
    gaussian = as_sum(loss) is squared_error
    exact = gaussian and structure == "full"
    if structure != "full":
        method = _ParameterBasis(kronecker=structure == "kronecker")
    elif dual:
        limits = {"trainable": trainable, "memory_limit": memory_limit}
        method = _KernelBasis(partial(ntk_matrix, f, params, **limits))
    else:
        method = _SingularVectors()

    def fit(moving, displacement, x, y):
        outputs, image = jax.jvp(lambda p: sliced(p, x), (moving,), (displacement,))
        roots = _square_roots(loss_hessian_blocks(loss, outputs, y).astype(dtype))
        residual = (outputs - y - image if exact else jnp.zeros_like(outputs)).astype(dtype)
        found = method.decompose(sliced, moving, x, roots, residual.reshape(roots.shape[:2]))
        return found, loss(outputs, y), dot(displacement, displacement)

    if as_sum(loss) is None:  # those of the library are sums, and convex
        _check_curvature(loss, shape, y)
    found, value, distance = SharedJit(fit)(moving, displacement, x, y)

    def project(x_new):
        check_same_tree("an example of x_new", _example_shapes(x_new), _example_shapes(x))
        return method.project(sliced, moving, found.basis, x_new)

    return Laplace(
        prior_precision=prior_precision,
        noise_variance=noise_variance,
        eigenvalues=found.eigenvalues,
        dual=dual,
        project=project,
        projected_residual=found.projected_residual,
        misfit=found.misfit if exact else 2 * value,
        squared_distance=jnp.zeros_like(value) if exact else distance,
        output_shape=shape.shape[1:],
        num_observations=shape.size if gaussian else 0,
        outputs=partial(sliced, moving),
        loss=loss,
    )


def _example_shapes(x):
    """Return the shapes and types of one example."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), x
    )


def _check_curvature(loss, outputs: jax.ShapeDtypeStruct, y):
    """Raise ValueError, unless traced, if the loss is no sum over examples, or flat or not convex.

    Convexity is checked at outputs of 0: at the network's own outputs the Hessian of a confident
    classifier is nothing but rounding.
    """

    def measure(y):
        anywhere = jax.random.normal(jax.random.key(1), outputs.shape, outputs.dtype)
        blocks = loss_hessian_blocks(loss, jnp.zeros_like(anywhere), y)
        values = jnp.linalg.eigvalsh(blocks.astype(jnp.promote_types(blocks.dtype, jnp.float32)))
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (anywhere, y))
        try:
            growth = loss(*twice) / loss(anywhere, y)
        except (TypeError, ValueError):  # it has weights for N examples, say
            growth = jnp.nan
        return largest_coupling(loss, anywhere, y), growth, jnp.min(values), jnp.max(values)

    coupling, growth, smallest, largest = SharedJit(measure)(y)
    if is_traced(coupling):
        return
    if coupling > 0:
        raise ValueError(f"loss couples its examples, got {loss!r}: it must be a sum over them")
    if abs(growth - 2) > 0.1:  # NaN where anything may be outside of the domain of the loss
        raise ValueError(
            f"loss must be a sum over the examples: with all of them twice it is {growth:.2g} "
            "times as large, not 2"
        )
    if not jnp.isfinite(largest - smallest):  # 0 may be outside of the domain of the loss
        return
    if largest <= 0 or smallest < -1e-3 * largest:
        raise ValueError(
            "loss must be convex and curved in the outputs, as a negative log-likelihood is: its "
            f"Hessian at outputs of 0 has eigenvalues from {smallest:.3g} to {largest:.3g}"
        )


def _square_roots(blocks):
    """Return the symmetric square root of each block, H^(1/2)."""
    values, vectors = jnp.linalg.eigh(blocks)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]) @ vectors.mT


class _Decomposition(NamedTuple):
    """W = U S V^T, and the residuals in it.

    The fields are those of `Laplace`, and `basis`: the arrays that `project` needs.
    """

    eigenvalues: Float[Array, " R"]
    basis: PyTree
    projected_residual: Float[Array, " R"]
    misfit: Float[Array, ""]


class _SingularVectors:
    """The singular value decomposition of W."""

    def decompose(self, f: Sliced, moving, x, roots, residual) -> _Decomposition:
        """Decompose W.

        A W with more rows than columns is first reduced to the R of a QR decomposition. The
        residual is one more column of W there, so that R holds its coordinates, too.
        """

        def weighted_rows(x, roots, residual):
            rows = jnp.einsum("nop,npq->noq", roots, jacobian_rows(f.f, moving, x))
            return jnp.concatenate([rows, residual[..., None]], 2).reshape(-1, rows.shape[2] + 1)

        def reduce(triangle, *part):
            return jnp.linalg.qr(jnp.concatenate([triangle, weighted_rows(*part)]), mode="r")

        outputs = residual.shape[1]
        size = sum(leaf.size for leaf in jax.tree.leaves(moving))
        if residual.size < size:
            matrix = weighted_rows(x, roots, residual)
        else:
            # A slice has at least as many rows as R, because fewer would cost more in all, and not
            # many more, so that it stays in cache.
            count = max(size, min(f.size * outputs, ASPECT * size)) // outputs
            start = jnp.zeros((size + 1, size + 1), residual.dtype)
            matrix = fold_slices(reduce, start, max(1, count), x, roots, residual)
        left, values, right = thin_svd(matrix[:, :-1])
        projected = matrix[:, -1] @ left
        misfit = jnp.sum((matrix[:, -1] - left @ projected) ** 2)
        return _Decomposition(values**2, right, projected, misfit)

    def project(self, f: Sliced, moving, right, x_new):
        def inside_and_outside(params, x) -> PyTree:
            rows = jacobian_rows(f.f, params, x)
            inside = rows @ right.T
            outside = rows - inside @ right
            return inside, outside @ outside.mT

        return in_slices(inside_and_outside, f.size)(moving, x_new)


class _ParameterBasis(NamedTuple):
    """W^T W replaced by its diagonal, in the basis of the parameters or of Kronecker factors."""

    kronecker: bool

    def decompose(self, f: Sliced, moving, x, roots, residual) -> _Decomposition:
        def over_rows(term):
            def of_part(x, roots):
                rows = jnp.einsum("nop,npq->noq", roots, jacobian_rows(f.f, moving, x))
                return term(rows.reshape(-1, rows.shape[-1]))

            return sum_over_slices(of_part, f.size, x, roots)

        bases = []
        if self.kronecker:
            factors = over_rows(
                lambda rows: [
                    (jnp.einsum("nij,nkj->ik", r, r), jnp.einsum("nij,nik->jk", r, r))
                    for r in _split(rows, moving)
                ]
            )
            bases = jax.tree.map(lambda factor: jnp.linalg.eigh(factor)[1], factors)
        diagonal = over_rows(lambda rows: jnp.sum(_rotate(rows, moving, bases) ** 2, 0))
        zero = jnp.zeros((), roots.dtype)
        return _Decomposition(diagonal, bases, jnp.zeros_like(diagonal), zero)

    def project(self, f: Sliced, moving, bases, x_new):
        rows = in_slices(partial(jacobian_rows, f.f), f.size)(moving, x_new)
        outside = jnp.zeros((*rows.shape[:2], rows.shape[1]), rows.dtype)
        return _rotate(rows, moving, bases), outside


def _split(rows, params) -> list[Array]:
    """Return the parts (..., i, j) of rows (..., P) that belong to each array of parameters."""
    leaves = jax.tree.leaves(params)
    parts = jnp.split(rows, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
    shapes = [_as_matrix(leaf.shape) for leaf in leaves]
    return [a.reshape(*a.shape[:-1], *s) for a, s in zip(parts, shapes, strict=True)]


def _rotate(rows, params, bases) -> Array:
    """Return the coordinates of rows (..., P) in the Kronecker factors' bases, if there are any."""
    if not bases:
        return rows
    pairs = zip(_split(rows, params), bases, strict=True)
    parts = [left.T @ r @ right for r, (left, right) in pairs]
    return jnp.concatenate([r.reshape((*rows.shape[:-1], -1)) for r in parts], -1)


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of an array whose axes are divided in two groups, evenly in size."""
    splits = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    return min(splits, key=sum, default=(math.prod(shape), 1))


class _KernelBasis(NamedTuple):
    """The eigenvalues of the kernel W W^T. U is complete, so that the misfit is 0."""

    kernel: Callable[..., Array]

    def decompose(self, f: Sliced, moving, x, roots, residual) -> _Decomposition:
        kernel = _weigh(roots, _weigh(roots, self.kernel(x)).T)
        values, basis = jnp.linalg.eigh(kernel)
        projected, zero = residual.reshape(-1) @ basis, jnp.zeros((), values.dtype)
        return _Decomposition(jnp.maximum(values, 0), (x, roots, basis), projected, zero)

    def project(self, f: Sliced, moving, found, x_new):
        def gram(params, x):
            rows = jacobian_rows(f.f, params, x)
            return rows @ rows.mT

        x, roots, basis = found
        rows = _weigh(roots, self.kernel(x_new, x)) @ basis
        grams = in_slices(gram, f.size)(moving, x_new)
        return rows.reshape(-1, roots.shape[1], len(basis)), grams


def _weigh(roots, rows):
    """Return rows H^(1/2), for rows (..., N O)."""
    by_example = rows.reshape(-1, *roots.shape[:2])
    return jnp.einsum("mno,nop->mnp", by_example, roots).reshape(rows.shape)


def _check_precisions(prior_precision, noise_variance) -> None:
    for name, value in (("prior_precision", prior_precision), ("noise_variance", noise_variance)):
        check_positive(name, value, scalar=True)
