"""Every public name has an example in its docstring, and it prints what it says."""

import doctest
import inspect
import re
from operator import attrgetter

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.training import losses

NEEDS = {"from_equinox": "equinox", "from_linen": "flax", "from_nnx": "flax"}
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


class ToThreeDigits(doctest.OutputChecker):
    """Of numbers the last digits are a machine's own; the rest is compared but for white space."""

    def check_output(self, want, got, flags):
        texts = ["".join(NUMBER.sub("#", text).split()) for text in (want, got)]
        numbers = [np.asarray(NUMBER.findall(text), float) for text in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=1e-3, atol=1e-3)


FUNCTIONS = [name for name in il.__all__ if not inspect.ismodule(getattr(il, name))]
FUNCTIONS += ["losses.cross_entropy", "losses.mean", "schedules.as_schedule"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_public_name_prints_what_it_says(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    names = {"il": il, "jax": jax, "jnp": jnp}
    text = inspect.getdoc(attrgetter(name)(il))
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert name in "".join(line.source for line in example.examples), "no example"
    told, runner = [], doctest.DocTestRunner(ToThreeDigits(), verbose=False)
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):  # as a user has it
        outcome = runner.run(example, out=told.append)
    assert not outcome.failed, "".join(told)


def test_completion_lists_the_public_names_and_no_others():
    assert dir(il) == sorted(il.__all__)
    assert all(hasattr(il, name) for name in il.__all__)
    assert il.losses is losses
