"""Functions traced to lists of operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.programs import eval_program, trace_program


def nested(x):
    inner = jax.jit(lambda v: jax.jit(jnp.tanh)(2 * v) + 1.0)
    carry, outputs = jax.lax.scan(lambda c, v: (c + v, c * v), x.sum(), inner(inner(x)))
    return jax.lax.cond(carry > 0, lambda: outputs, lambda: carry * outputs)


@pytest.mark.parametrize("function", [nested, lambda x: jax.nn.relu(x) - jax.nn.softplus(x)])
def test_a_traced_program_has_value_and_derivative_of_its_function(function):
    """At 0, where relu's own rule (0) and that of the maximum in it (1/2) differ, too."""
    x = jnp.asarray([-1.5, 0.0, 2.0])
    program = trace_program(function, x)

    def again(x):
        return eval_program(program, [x], {})[0]

    np.testing.assert_allclose(again(x), function(x), rtol=1e-15)
    np.testing.assert_allclose(jax.jacrev(again)(x), jax.jacrev(function)(x), atol=1e-15)
