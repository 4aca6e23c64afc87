"""Laplace's approximation for the linearised network: its uncertainty, and its evidence.

With a Gaussian prior of precision delta on the parameters and the log-likelihood -loss / s^2, the
posterior of the linearised network at params is the Gaussian of precision J^T H J / s^2 + delta I
(MacKay 1992; Immer, Korzepa & Bauer 2021). For the squared error it is exact, and its predictions
are those of the Gaussian process whose kernel is J J^T / delta (Khan et al. 2019).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iterlin import examples
from iterlin.curvature.products import loss_blocks
from iterlin.krylov import dot
from iterlin.linearization import (
    Network,
    jacobian_rows,
    output_shape,
    require_independent,
    tree_sub,
)
from iterlin.losses import Loss, Mean, squared_error
from iterlin.ntk import ntk_matrix
from iterlin.parameters import Trainable, bound, split, trainable_mask
from iterlin.runtime.precision import full_precision
from iterlin.runtime.slices import in_slices, sum_over_slices
from iterlin.validation import factorable, like, positive, positive_integer


class Laplace(NamedTuple):
    """The posterior of the trained parameters, of covariance (J^T H J / s^2 + delta I)^-1.

    prior_precision delta and noise_variance s^2 may be replaced at no cost, and differentiated in:
    ``posterior._replace(prior_precision=0.1).log_marginal_likelihood()``.

    Vectors v (P,) of parameter space are held as coordinates (R,) in the eigenvectors of J^T H J or
    (dual) as U^T H^(1/2) J v, U the eigenvectors of H^(1/2) J J^T H^(1/2); both matrices have the
    eigenvalues (R,). project(x_new) gives coordinates (M, O, R) and Gram matrices (M, O, O) of the
    rows of J there; vectors and gram are those of the loss's gradient and of params - prior_mean.
    value is the loss at params, out the shape of an example's outputs; normal counts the numbers
    that the normalisation of a Gaussian likelihood is of.
    """

    prior_precision: Any
    noise_variance: Any
    eigenvalues: Float[Array, " R"]
    dual: bool
    project: Callable[[PyTree], tuple[Array, Array]]
    vectors: Float[Array, "2 R"]
    gram: Float[Array, "2 2"]
    value: Float[Array, ""]
    out: tuple[int, ...]
    normal: int

    @full_precision()
    def variance(self, x_new: PyTree) -> Float[Array, "..."]:
        """Covariance (M, ..., ...) of the outputs of each of M examples; noise is not included.

        Takes memory for M O min(P, N O) numbers: pass some examples at a time if need be.
        """
        examples.count(x_new, "x_new")
        covariance = self._covariance(*self.project(x_new))
        return covariance.reshape(len(covariance), *self.out, *self.out)

    @full_precision()
    def log_marginal_likelihood(self) -> Float[Array, ""]:
        """log p(y) of the linearised network (MacKay 1992; Immer, Bauer et al. 2021).

        Exact for the squared error, at any params. For another loss params are taken for the mode,
        which they are once loss / s^2 + delta/2 ||params - prior_mean||^2 has been minimised, and
        what exp(-loss / s^2) lacks to be normalised in y is left out (nothing for cross-entropy).
        """
        delta, noise = self.prior_precision, self.noise_variance
        covariance = self._covariance(self.vectors, self.gram)
        volume = jnp.sum(jnp.log1p(self.eigenvalues / (noise * delta)))
        found = -self.value / noise - 0.5 * delta * self.gram[1, 1] - 0.5 * volume
        if not self.normal:
            return found
        # How far the mode is from params: half g^T (J^T J / s^2 + delta I)^-1 g.
        weights = jnp.stack([1 / jnp.asarray(noise), jnp.asarray(delta)])
        shift = 0.5 * weights @ covariance @ weights
        return found + shift - 0.5 * self.normal * jnp.log(2 * math.pi * noise)

    def _covariance(self, coordinates, gram):
        """V^T (J^T H J / s^2 + delta I)^-1 V for the vectors of those coordinates."""
        delta, noise = self.prior_precision, self.noise_variance
        positive("prior_precision", delta)
        positive("noise_variance", noise)
        weights = 1 / (self.eigenvalues + noise * delta)
        inner = jnp.einsum("...ir,r,...jr->...ij", coordinates, weights, coordinates)
        return (gram - inner) / delta if self.dual else noise * inner


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
    The noise variance is that of the observations for the squared error, and a temperature for
    other losses. The prior has `prior_precision` (a penalty prior_precision/2 ||theta||^2 in
    training) and mean `prior_mean`, like params, by default 0. Of what is not `trainable` nothing
    is uncertain.

    Whichever is smaller is decomposed: J^T H J (P, P), or its dual (N O, N O) from the kernel
    J J^T, where variances below eps J J^T / prior_precision are lost to rounding. `memory_limit`
    bounds, in bytes, the rows of J kept at a time; that matrix comes on top.

    Raises ValueError for a prior_precision or noise_variance that is not positive and finite; a
    loss that is a mean, or (unless traced) couples examples; an f that couples them; parameters
    narrower than float32; or a prior_mean that is not like params.

    >>> f, x, y = lambda p, x: x @ p, jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"loss": il.losses.squared_error, "prior_precision": 1.0, "noise_variance": 0.25}
    >>> posterior = il.laplace(f, jnp.zeros(2), x, y, **settings)
    >>> print(posterior.variance(2 * x).round(3), posterior.log_marginal_likelihood().round(3))
    [0.8 0.8] -6.061
    """
    positive("prior_precision", prior_precision)
    positive("noise_variance", noise_variance)
    positive_integer("memory_limit", memory_limit)
    examples.count((x, y), "inputs and targets")
    if isinstance(loss, Mean):
        raise ValueError("loss must be a sum over the examples: pass what `losses.mean` was given")
    moving, fixed = split(params, trainable)
    factorable("params", jnp.result_type(*jax.tree.leaves(moving)))
    network = bound(f, fixed)
    require_independent(network, moving, x)
    displacement = moving
    if prior_mean is not None:
        like("prior_mean", prior_mean, params)
        mask = trainable_mask(params, trainable)
        displacement = tree_sub(
            moving, jax.tree.map(lambda m, a: a if m else None, mask, prior_mean)
        )

    def kernel(x1, x2=None):
        return ntk_matrix(f, params, x1, x2, trainable=trainable, memory_limit=memory_limit)

    def gradient(x, y):
        return jax.grad(lambda p: loss(network(p, x), y))(moving)

    shape = output_shape(network, moving, x)
    size = sum(leaf.size for leaf in jax.tree.leaves(moving))
    dual = shape.size < size
    row_bytes = math.prod(shape.shape[1:]) * size * shape.dtype.itemsize
    slice_size = max(1, memory_limit // row_bytes)
    sliced = in_slices(network, slice_size)
    outputs = sliced(moving, x)
    blocks = loss_blocks(loss, outputs, y)
    vectors = (sum_over_slices(gradient, slice_size, x, y), displacement)
    if dual:
        eigenvalues, project, coordinates = _dual(sliced, moving, x, blocks, kernel)
    else:
        eigenvalues, project, coordinates = _primal(sliced, moving, x, blocks)
    return Laplace(
        prior_precision,
        noise_variance,
        eigenvalues,
        dual,
        project,
        jnp.stack([coordinates(v) for v in vectors]),
        jnp.stack([jnp.stack([dot(u, v) for v in vectors]) for u in vectors]),
        loss(outputs, y),
        outputs.shape[1:],
        outputs.size if loss is squared_error else 0,
    )


def _primal(f, moving, x, blocks):
    """Eigenvalues of J^T H J, and what gives coordinates in its eigenvectors."""

    def term(x, blocks):
        rows = jacobian_rows(f.f, moving, x)
        return jnp.einsum("nop,noq,nqr->pr", rows, blocks, rows)

    eigenvalues, basis = jnp.linalg.eigh(sum_over_slices(term, f.size, x, blocks))

    def project(x_new):
        def part(params, x):
            rows = jacobian_rows(f.f, params, x)
            return rows @ basis, rows @ rows.mT

        return in_slices(part, f.size)(moving, x_new)

    return jnp.maximum(eigenvalues, 0), project, lambda v: ravel_pytree(v)[0] @ basis


def _dual(f, moving, x, blocks, kernel):
    """The same of H^(1/2) J J^T H^(1/2), from the kernel."""
    count, outputs, _ = blocks.shape
    values, vectors = jnp.linalg.eigh(blocks)
    roots = (vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None]) @ vectors.mT

    def whiten(rows):
        """rows H^(1/2), for rows (..., N O)."""
        parted = rows.reshape(-1, count, outputs)
        return jnp.einsum("mno,nop->mnp", parted, roots).reshape(rows.shape)

    def coordinates(v):
        image = jax.jvp(lambda p: f(p, x), (moving,), (v,))[1]
        return whiten(image.reshape(-1)) @ basis

    eigenvalues, basis = jnp.linalg.eigh(whiten(whiten(kernel(x)).T))

    def project(x_new):
        def gram(params, x):
            rows = jacobian_rows(f.f, params, x)
            return rows @ rows.mT

        rows = whiten(kernel(x_new, x)) @ basis
        return rows.reshape(-1, outputs, len(basis)), in_slices(gram, f.size)(moving, x_new)

    return jnp.maximum(eigenvalues, 0), project, coordinates
