"""The objective and the optimiser of iterative linearisation."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.compiled import as_argument
from iterlin.linearise.linearization import Network, linearize
from iterlin.linearise.parameters import Trainable, bind_fixed
from iterlin.linearise.precision import widened
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import (
    as_python,
    check_bools,
    check_non_negative,
    check_positive,
    check_signature,
    describe,
    instead_of_module,
    is_traced,
)
from iterlin.training.losses import Loss, Mean, loss_over_slices
from iterlin.training.state import TrainState


@dataclass(frozen=True, eq=False)
class Algorithm:
    """The objective that training minimises, and the optimiser.

    Args:
        f: The network: f(params, x) -> outputs (N, ...), for any pytree of params.
        loss: loss(outputs, y) -> a number, a sum or a mean (`losses.mean`).
        optimizer: A transformation of `optax`, or the step size of plain gradient descent. Its
            update receives value, grad and value_fn, as optax's line searches expect; value_fn is
            the `LinearProblem` of the step. None if each run brings its own.
        penalty: lambda of lambda ||theta - theta_s||^2, which is added to the loss of each
            linearisation (eq. (10); it equals damping 2 lambda).
        regularizer: R(params) -> a number, added to the loss without linearising it.
        trainable: Which parameters are trained (`parameters.partition`); None for all of them.
        keyed: Whether f(params, x, key) takes a PRNG key, as for dropout: a new one at each step,
            None in evaluation.
        normalization: `networks.normalization.Normalization` of a network with running statistics.
            It is trained and evaluated by the two modes in it, so f must be the function that it
            was made with.
        reset_optimizer: Whether the optimiser starts anew at each linearisation.

    Raises:
        ValueError: If f, loss or regularizer is not a function of these arguments, if optimizer or
            normalization has another type, or if the penalty is negative.

    >>> import optax
    >>> net, loss = il.mlp((2, 16, 3)), il.losses.mean(il.losses.cross_entropy)
    >>> descent = il.Algorithm(net.apply, loss, optimizer=0.1)
    >>> damped = il.Algorithm(net.apply, loss, optax.adam(1e-3), penalty=1e-2)
    >>> last_layer = il.Algorithm(net.apply, loss, 0.1, trainable=lambda path: path[0] == "1")
    """

    f: Callable[..., Array]  # (params, x), or (params, x, key) if keyed
    loss: Loss
    optimizer: optax.GradientTransformation | float | None = None
    penalty: float | Array = 0.0
    regularizer: Callable[[PyTree], Array] | None = None
    trainable: Trainable = None
    keyed: bool = False
    normalization: Any = None
    reset_optimizer: bool = False
    # Compiled programs for the next call of `train` that other algorithms cannot share.
    programs: dict[tuple, Callable] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        for name in ("f", "loss", "regularizer"):
            value = getattr(self, name)
            if not callable(value) and not (name == "regularizer" and value is None):
                got = f"{type(value).__name__}{instead_of_module(value)}"
                raise ValueError(f"{name} must be a function, got {got}")
        if isinstance(self.f, Mean):
            raise ValueError("f must be the network f(params, x), got a loss: it comes second")
        check_signature("loss", self.loss, ("outputs", "y"))
        if self.regularizer is not None:
            check_signature("regularizer", self.regularizer, ("params",))
        if remedy := instead_of_module(self.f):
            raise ValueError(f"f must be a function, got {type(self.f).__name__}{remedy}")
        if self.keyed:
            check_signature("f", self.f, ("params", "x", "key"))
        else:
            remedy = "; with keyed=True it is f(params, x, key)"
            check_signature("f", self.f, ("params", "x"), remedy)
        if callable(self.optimizer):
            raise ValueError(
                "optimizer must be a transformation, as optax.adam(1e-3), or a step size: got the "
                f"function {describe(self.optimizer)}"
            )
        if hasattr(self.optimizer, "schedule"):  # `for_time` gives both
            raise ValueError("optimizer must be the .optimizer of for_time's result")
        if not isinstance(self.optimizer, optax.GradientTransformation | None):
            check_positive("optimizer, as a step size,", self.optimizer, scalar=True)
        check_bools(keyed=self.keyed, reset_optimizer=self.reset_optimizer)
        check_non_negative("penalty", self.penalty, scalar=True)
        for name in ("optimizer", "penalty"):
            # A number of NumPy or JAX would make a run of lower precision wider.
            object.__setattr__(self, name, as_python(getattr(self, name)))
        if self.normalization is not None and not hasattr(self.normalization, "evaluate"):
            raise ValueError(
                "normalization must be a `networks.normalization.Normalization`, "
                f"got {self.normalization!r}"
            )
        made_with = getattr(self.normalization, "f", None)
        if made_with is not None and self.f is not made_with:
            raise ValueError(
                "f is not the function that normalization was made with, which would be trained in "
                "its place: change the module and adapt it again; or, for fixed statistics, give "
                "a function of `evaluated` and no normalization"
            )

        forgotten = [name for name in getattr(self.f, "settings", ()) if not getattr(self, name)]
        if forgotten:
            warnings.warn(
                f"f is of a module that needs {' and '.join(forgotten)}: give the algorithm its "
                "settings (**net.settings); otherwise it trains without dropout, and its running "
                "statistics do not change",
                stacklevel=3,  # of the call of Algorithm
            )

    def __getstate__(self):
        return {**self.__dict__, "programs": {}}  # compiled functions cannot be pickled

    @property
    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """The optimiser as a transformation of `optax`. Raises ValueError if there is none."""
        if self.optimizer is None:
            raise ValueError("the algorithm has no optimizer: give one, or a step size")
        if isinstance(self.optimizer, optax.GradientTransformation):
            return optax.with_extra_args_support(self.optimizer)
        # As `optax.sgd`, which would compile the product with -1.
        descent = optax.chain(optax.identity(), optax.scale(as_argument(-self.optimizer)))
        return optax.with_extra_args_support(descent)

    def bind_fixed(self, fixed: PyTree) -> "Algorithm":
        """Return the algorithm as one of the trained parameters alone."""
        changed = {"f": bind_fixed(self.f, fixed), "trainable": None}
        if self.regularizer is not None:
            changed["regularizer"] = bind_fixed(self.regularizer, fixed)
        if self.normalization is not None:
            changed["normalization"] = self.normalization.bind_fixed(fixed)
        return replace(self, **changed)

    def network(self, state: TrainState) -> Network:
        """Return the network in evaluation mode, as a function of (params, x).

        It uses the running statistics of the state, if it has any.
        """
        if self.normalization is None:
            return (lambda params, x: self.f(params, x, None)) if self.keyed else self.f
        return lambda params, x: self.normalization.evaluate(params, state.statistics, x)

    def in_training(self, params: PyTree, x: PyTree, extra: tuple) -> tuple[Array, PyTree]:
        """Return the outputs in training mode, and the running statistics after the batch."""
        if self.normalization is None:
            return self.f(params, x, *extra), ()
        statistics, *key = extra
        return self.normalization.apply(params, statistics, x, *key)

    def extra(self, state: TrainState, key: Array | None) -> tuple:
        """Return the further arguments of the network in training: statistics and a PRNG key."""
        of_key = (key,) if self.keyed else ()
        return of_key if self.normalization is None else (state.statistics, *of_key)

    @property
    def has_penalty(self) -> bool:
        """Whether the penalty may be positive."""
        return is_traced(self.penalty) or bool(self.penalty > 0)

    @property
    def has_further_terms(self) -> bool:
        """Whether the objective has a penalty or a regularizer."""
        return self.has_penalty or self.regularizer is not None

    def further_terms(self, theta: PyTree, anchor: PyTree) -> Array | float:
        """Return the sum of the penalty and the regularizer."""
        total = 0.0
        if self.has_penalty:
            moved = jax.tree.map(widened, optax.tree.sub(theta, anchor))
            total = as_argument(self.penalty) * optax.tree.norm(moved, squared=True)
        return total if self.regularizer is None else total + self.regularizer(theta)

    def with_further_terms(self, gradient: PyTree, theta: PyTree, anchor: PyTree) -> PyTree:
        """Return the gradient of the objective from the gradient of the loss."""
        if not self.has_further_terms:
            return gradient
        return optax.tree.add(gradient, jax.grad(self.further_terms)(theta, anchor))

    def objective_and_gradient(
        self, theta, anchor, x, y, extra, *, at_anchor: bool, mesh: Mesh | None = None
    ) -> tuple[Array, PyTree, PyTree]:
        """Return the linearised objective of a batch, its gradient, and the running statistics.

        extra: see `extra`. at_anchor: whether theta equals the anchor, so that the Jacobian-vector
        product is zero and is not computed. mesh: devices that share the examples.
        """
        displacement = None if at_anchor else optax.tree.sub(theta, anchor)
        value, gradient, statistics = self.loss_and_gradient(
            anchor, displacement, x, y, extra, mesh
        )
        if self.has_further_terms:
            value = value + self.further_terms(theta, anchor)
            gradient = self.with_further_terms(gradient, theta, anchor)
        return value, gradient, statistics

    def loss_and_gradient(self, anchor, displacement, x, y, extra, mesh):
        """Return the loss of the proxy, its gradient J^T u, and the running statistics.

        A sliced network whose loss is a sum goes slice by slice from the inputs to the gradient, so
        that no activation outlives its slice. On a mesh each device goes through its own examples.
        Any other network sees the whole batch at once. A displacement of None stands for zero.
        """

        def of_part(loss, x, y, anchor, displacement, extra):
            network = lambda p: self.in_training(p, x, extra)  # noqa: E731
            if displacement is None:
                outputs, transpose, statistics = jax.vjp(network, anchor, has_aux=True)
            else:
                outputs, jvp, statistics = jax.linearize(network, anchor, has_aux=True)
                transpose = jax.linear_transpose(jvp, anchor)
                outputs = outputs + jvp(displacement)
            value, cotangent = jax.value_and_grad(loss)(outputs, y)
            return value, transpose(cotangent)[0], statistics

        # A keyed network takes one key for the batch, and would need another for each slice.
        indivisible = self.normalization is not None or self.keyed
        size = self.f.size if isinstance(self.f, Sliced) and not indivisible else None
        mesh = None if indivisible else mesh
        shared = anchor, displacement, extra
        return loss_over_slices(of_part, self.loss, size, x, y, *shared, mesh=mesh)


@dataclass(frozen=True)
class LinearProblem:
    """The objective of a batch, linearised at the anchor, as a function of theta.

    Args:
        algorithm: The objective, including penalty and regularizer.
        anchor: The point of expansion theta_s.
        x: Inputs of the batch.
        y: Targets of the batch.
        extra: Further arguments of the network: running statistics and a PRNG key.
        linearizing: Whether the anchor is new in this step.
    """

    algorithm: Algorithm
    anchor: PyTree
    x: PyTree
    y: PyTree
    extra: tuple[PyTree, ...]
    linearizing: Bool[Array, ""]

    def outputs(self, theta: PyTree) -> Array:
        """Return the outputs of the proxy, f(theta_s) + J_s (theta - theta_s), on the batch."""
        network = lambda p, x: self.algorithm.in_training(p, x, self.extra)[0]  # noqa: E731
        return linearize(network, self.anchor)(theta, self.x)

    def __call__(self, theta: PyTree) -> Array:
        """Return the objective of the proxy at theta on the batch, a scalar."""
        value = self.algorithm.loss(self.outputs(theta), self.y)
        if self.algorithm.has_further_terms:
            value = value + self.algorithm.further_terms(theta, self.anchor)
        return value
