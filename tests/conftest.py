"""float64, checked array shapes and no silent broadcasting for every test; Hypothesis repeats."""

import signal

import jax
import matplotlib
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

matplotlib.use("agg")
jax.config.update("jax_enable_x64", True)
# Arrays of different ranks must be aligned by hand: (N, 1) with (N,) would hide an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Before the library is imported: its shape annotations are checked at every call, in tests only.
install_import_hook("iterlin", "type_checks.check")

# A shell's background job ignores Ctrl-C, and so would the commands under test, which inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=12,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
