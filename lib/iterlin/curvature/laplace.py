"""Laplace's approximation for the linearised network: its uncertainty, and its evidence.

With a Gaussian prior of precision delta on the parameters and the log-likelihood -loss / s^2, the
posterior of the linearised network at params is the Gaussian of precision J^T H J / s^2 + delta I
(MacKay 1992; Immer, Korzepa & Bauer 2021). For the squared error it is exact, and its predictions
are those of the Gaussian process whose kernel is J J^T / delta (Khan et al. 2019).
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.curvature.products import loss_blocks, require_function
from iterlin.kernels.ntk import ntk_matrix
from iterlin.linearise import examples
from iterlin.linearise.decomposition import ASPECT, thin_svd
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.krylov import dot
from iterlin.linearise.linearization import (
    Network,
    jacobian_rows,
    output_shape,
    require_independent,
)
from iterlin.linearise.parameters import Trainable, bind_fixed, partition, trainable_mask
from iterlin.linearise.precision import full_precision
from iterlin.linearise.slices import fold_slices, in_slices
from iterlin.linearise.validation import (
    check_float32_or_wider,
    check_positive,
    check_positive_integer,
    check_same_tree,
    check_scalar,
    is_traced,
)
from iterlin.training.losses import Loss, Mean, check_loss, squared_error


class Laplace(NamedTuple):
    """The posterior of the trained parameters, of covariance (J^T H J / s^2 + delta I)^-1.

    prior_precision delta and noise_variance s^2 may be replaced at no cost, and differentiated in:
    ``posterior._replace(prior_precision=0.1).log_marginal_likelihood()``.

    W = H^(1/2) J = U S V^T has the squared singular values `eigenvalues` (R,). project(x_new) gives
    the rows of J there as coordinates (M, O, R) in V, and the Gram matrices (M, O, O) of what is
    orthogonal to V; or (dual, where U is of the kernel) U^T W j for each row j, and the Gram
    matrices of the rows. For the squared error residual (R,) is U^T r of the residuals r of the
    linearised network at the prior's mean, misfit ||r - U U^T r||^2, normal their number; for
    another loss misfit is twice the loss at params, and distance ||params - prior_mean||^2. out is
    the shape of an example's outputs.
    """

    prior_precision: Any
    noise_variance: Any
    eigenvalues: Float[Array, " R"]
    dual: bool
    project: Callable[[PyTree], tuple[Array, Array]]
    residual: Float[Array, " R"]
    misfit: Float[Array, ""]
    distance: Float[Array, ""]
    out: tuple[int, ...]
    normal: int

    @full_precision()
    def variance(self, x_new: PyTree) -> Float[Array, "..."]:
        """Covariance ``(M, *out, *out)`` of outputs ``(M, *out)`` at M examples, squared units.

        Of the network's outputs: the noise of observations is not included. Takes memory for
        M O min(P, N O) numbers: pass some examples at a time if need be. Warns where the kernel is
        too coarse in its precision (see `laplace`).

        Raises ValueError for examples that are not shaped as those of x, or a replaced
        prior_precision or noise_variance that is not positive and finite.
        """
        examples.num_examples(x_new, "x_new")
        weights = self._weights()
        coordinates, gram = self.project(x_new)
        inner = jnp.einsum("mir,r,mjr->mij", coordinates, weights, coordinates)
        delta, noise = self.prior_precision, self.noise_variance
        found = (gram - inner) / delta if self.dual else gram / delta + noise * inner
        return found.reshape(len(found), *self.out, *self.out)

    @full_precision()
    def log_marginal_likelihood(self) -> Float[Array, ""]:
        """log p(y) of the linearised network (MacKay 1992; Immer, Bauer et al. 2021).

        Exact for the squared error, at any params. For another loss params are taken for the mode,
        which they are once loss / s^2 + delta/2 ||params - prior_mean||^2 has been minimised, and
        what exp(-loss / s^2) lacks to be normalised in y is left out (nothing for cross-entropy).
        Warns and raises as `variance`.
        """
        weights = self._weights()
        delta, noise = self.prior_precision, self.noise_variance
        fit = delta * jnp.sum(weights * self.residual**2) + self.misfit / noise
        volume = jnp.sum(jnp.log1p(self.eigenvalues / (noise * delta)))
        normal = self.normal * jnp.log(2 * math.pi * noise)
        return -0.5 * (fit + delta * self.distance + volume + normal)

    def _weights(self) -> Float[Array, " R"]:
        delta, noise = self.prior_precision, self.noise_variance
        check_positive("prior_precision", delta)
        check_positive("noise_variance", noise)
        if self.dual:
            eps = jnp.finfo(self.eigenvalues.dtype).eps
            coarse = eps * jnp.max(self.eigenvalues) > noise * delta
            if not is_traced(coarse) and jnp.any(coarse):
                warnings.warn(
                    f"{self.eigenvalues.dtype} does not resolve the kernel down to noise_variance "
                    "* prior_precision: variances may be wrong, even negative. Compute in float64 "
                    "(jax_enable_x64), or give `laplace` a memory_limit that holds the Jacobian",
                    stacklevel=4,
                )
        return 1 / (self.eigenvalues + noise * delta)


@with_auto_axes
@full_precision()
def laplace(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    loss: Loss,
    prior_precision,
    noise_variance=1.0,
    prior_mean: PyTree | None = None,
    trainable: Trainable = None,
    memory_limit: int = 2**28,
) -> Laplace:
    """The posterior of the linearised network at params, given the N examples (x, y).

    `loss` of (outputs, y) over `noise_variance` is the negative log-likelihood: a sum over the
    examples and convex in the outputs, as `losses.squared_error` and `losses.cross_entropy` are.
    The noise variance is that of the observations for the squared error, in squared outputs, and a
    temperature for other losses. The prior has `prior_precision` (a penalty
    prior_precision/2 ||theta||^2 in training) and mean `prior_mean`, like params, by default 0. Of
    what is not `trainable` nothing is uncertain.

    H^(1/2) J (N O, P) is decomposed by singular values, so that nothing is squared: reduced to
    (P, P) first, slice by slice, where N O >= P, and otherwise as a whole if it fits `memory_limit`
    bytes. If it does not, the kernel H^(1/2) J J^T H^(1/2) (N O, N O) is. That takes less, but
    loses variances below eps J J^T / prior_precision to rounding, and warns where they matter:
    where noise_variance prior_precision is below eps times the kernel's largest eigenvalue.
    `memory_limit` bounds the rows of J kept at a time; what is decomposed comes on top.

    Raises ValueError for a prior_precision or noise_variance that is not positive and finite; a
    loss that is no function, is a mean, or (unless traced) couples examples or is not convex; an f
    that couples them; targets of another number than the inputs, or that the loss refuses;
    parameters narrower than float32, or none to train; a prior_mean that is not like params; a
    memory_limit that is not a positive integer, or too small for the kernel (`empirical_ntk`).

    >>> f, x, y = lambda p, x: x @ p, jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"loss": il.losses.squared_error, "prior_precision": 1.0, "noise_variance": 0.25}
    >>> posterior = il.laplace(f, jnp.zeros(2), x, y, **settings)
    >>> print(posterior.variance(2 * x).round(3), posterior.log_marginal_likelihood().round(3))
    [0.8 0.8] -6.061
    """
    check_positive("prior_precision", prior_precision)
    check_positive("noise_variance", noise_variance)
    check_scalar("prior_precision", prior_precision)
    check_scalar("noise_variance", noise_variance)
    check_positive_integer("memory_limit", memory_limit)
    examples.num_examples((x, y), "inputs and targets")
    require_function(loss)
    if isinstance(loss, Mean):
        raise ValueError("loss must be a sum over the examples: pass what `losses.mean` was given")
    mask = trainable_mask(params, trainable)
    moving, fixed = partition(params, mask)
    moving = jax.tree.map(jnp.asarray, moving)
    dtype = jnp.result_type(*jax.tree.leaves(moving))
    check_float32_or_wider("params", dtype)
    network = bind_fixed(f, fixed)
    require_independent(network, moving, x)
    displacement = moving
    if prior_mean is not None:
        check_same_tree("prior_mean", prior_mean, params)
        mean = jax.tree.map(lambda chosen, leaf: leaf if chosen else None, mask, prior_mean)
        displacement = jax.tree.map(lambda a, b: (a - b).astype(a.dtype), moving, mean)

    def kernel(x1, x2=None):
        return ntk_matrix(f, params, x1, x2, trainable=trainable, memory_limit=memory_limit)

    shape = output_shape(network, moving, x)
    check_loss(loss, shape, y)
    size = sum(leaf.size for leaf in jax.tree.leaves(moving))
    row_bytes = math.prod(shape.shape[1:]) * size * shape.dtype.itemsize
    dual = shape.size < size and shape.shape[0] * row_bytes > memory_limit
    sliced = in_slices(network, max(1, memory_limit // row_bytes))
    outputs, image = jax.jvp(lambda p: sliced(p, x), (moving,), (displacement,))
    _require_convex(loss, outputs, y)
    roots = _roots(loss_blocks(loss, outputs, y).astype(dtype))
    value, exact = loss(outputs, y), loss is squared_error
    residual = (outputs - y - image if exact else jnp.zeros_like(outputs)).astype(dtype)
    given = (sliced, moving, x, roots, residual.reshape(roots.shape[:2]))
    eigenvalues, project, residual, left = _by_kernel(*given, kernel) if dual else _by_rows(*given)

    @with_auto_axes
    def project_alike(x_new):
        check_same_tree("an example of x_new", _example(x_new), _example(x))
        return project(x_new)

    return Laplace(
        prior_precision,
        noise_variance,
        eigenvalues,
        dual,
        project_alike,
        residual,
        left if exact else 2 * value,
        jnp.zeros_like(value) if exact else dot(displacement, displacement),
        outputs.shape[1:],
        outputs.size if exact else 0,
    )


def _example(x):
    """Shapes and types of one example."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), x
    )


def _require_convex(loss, outputs, y):
    """Raise ValueError, unless traced, for a loss that is not convex or is flat at outputs of 0.

    Not at the outputs themselves: those of a confident classifier leave H to rounding.
    """
    values = jnp.linalg.eigvalsh(loss_blocks(loss, jnp.zeros_like(outputs), y))
    if is_traced(values) or not jnp.all(jnp.isfinite(values)):  # 0 may be outside of its domain
        return
    least, most = jnp.min(values), jnp.max(values)
    if most <= 0 or least < -1e-3 * most:
        raise ValueError(
            "loss must be convex and curved in the outputs, as a negative log-likelihood is: its "
            f"Hessian at outputs of 0 has eigenvalues from {least:.3g} to {most:.3g}"
        )


def _roots(blocks):
    """Return H^(1/2), block by block."""
    values, vectors = jnp.linalg.eigh(blocks)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None]) @ vectors.mT


def _by_rows(f, moving, x, roots, residual):
    """Of W = U S V^T: S^2, what projects onto V, U^T residual, and the square of what that leaves.

    Tall W are reduced to the R of a QR decomposition, with the residual as one more column.
    """

    def rows_of(x, roots, residual):
        rows = jnp.einsum("nop,npq->noq", roots, jacobian_rows(f.f, moving, x))
        return jnp.concatenate([rows, residual[..., None]], 2).reshape(-1, rows.shape[2] + 1)

    def reduce(triangle, *part):
        return jnp.linalg.qr(jnp.concatenate([triangle, rows_of(*part)]), mode="r")

    outputs = residual.shape[1]
    size = sum(leaf.size for leaf in jax.tree.leaves(moving))
    if residual.size < size:
        matrix = rows_of(x, roots, residual)
    else:
        # Fewer rows at a time than R has would cost more, and many more do not stay in cache.
        part = max(size, min(f.size * outputs, ASPECT * size)) // outputs
        start = jnp.zeros((size + 1, size + 1), residual.dtype)
        matrix = fold_slices(reduce, start, max(1, part), x, roots, residual)
    left, values, right = thin_svd(matrix[:, :-1])
    image = matrix[:, -1] @ left

    def project(x_new):
        def part(params, x):
            rows = jacobian_rows(f.f, params, x)
            inside = rows @ right.T
            outside = rows - inside @ right
            return inside, outside @ outside.mT

        return in_slices(part, f.size)(moving, x_new)

    return values**2, project, image, jnp.sum((matrix[:, -1] - left @ image) ** 2)


def _by_kernel(f, moving, x, roots, residual, kernel):
    """The same from the kernel W W^T, but that W is projected on and not V."""

    def whiten(rows):
        """rows H^(1/2), for rows (..., N O)."""
        parted = rows.reshape(-1, *residual.shape)
        return jnp.einsum("mno,nop->mnp", parted, roots).reshape(rows.shape)

    values, basis = jnp.linalg.eigh(whiten(whiten(kernel(x)).T))

    def project(x_new):
        def gram(params, x):
            rows = jacobian_rows(f.f, params, x)
            return rows @ rows.mT

        rows = whiten(kernel(x_new, x)) @ basis
        grams = in_slices(gram, f.size)(moving, x_new)
        return rows.reshape(-1, residual.shape[1], len(basis)), grams

    nothing = jnp.zeros((), values.dtype)  # is left: U is complete
    return jnp.maximum(values, 0), project, residual.reshape(-1) @ basis, nothing
