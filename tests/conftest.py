"""float64, checked array shapes and no silent broadcasting for every test; Hypothesis repeats.

What `pytest --nightly` adds: the tests marked `nightly`, truly random examples, XLA's code
generator of today, which readers have (`xla.QUICKER`), and its optimisations also where a test
compares numbers with an oracle.
"""

import gc
import os
import signal
from pathlib import Path

import jax
import jaxtyping
import matplotlib
import pytest
from hypothesis import HealthCheck, settings
from iterlin_book import xla
from nbval.plugin import IPyNbFile
from type_checks import where_shapes_are

# Tracing makes many objects and little garbage: looking for it takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)
matplotlib.use("agg")
jax.config.update("jax_enable_x64", True)
# Arrays of different ranks must be aligned by hand: (N, 1) with (N,) would hide an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Before the library is imported: its shape annotations are checked at every call, in tests only.
LIB = Path(__file__).resolve().parents[1] / "lib"
paths = [p for name in ("iterlin", "iterlin_study") for p in (LIB / name).rglob("*.py")]
names = [".".join(p.relative_to(LIB).with_suffix("").parts) for p in paths]
jaxtyping.jaxtyped = where_shapes_are(jaxtyping.jaxtyped)
jaxtyping.install_import_hook(["book", *names], "type_checks.check")

# A shell's background job ignores Ctrl-C, and so would the commands under test, which inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` looks at the same examples each time, `make nightly` at others each night.
FEW, MANY = "repeatable", "nightly"
quiet = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(FEW, derandomize=True, max_examples=12, **quiet)
settings.register_profile(MANY, derandomize=False, max_examples=50, print_blob=True, **quiet)
settings.load_profile(FEW)

# Programs are compiled without most of XLA's optimisations: compiling is most of a test's time,
# and what it compares with is an oracle, within a tolerance. A test about bits, memory, buffers or
# what is compiled is marked `optimized`.
SWITCH = "jax_disable_most_optimizations"

# Started first, so that no worker is left with a long file at the end.
LONGEST = (
    *("book_build", "tiers", "more_seeds", "mutations", "book_results", "four_devices"),
    *("integrate", "training", "checkpoints", "gradient_flow", "own_networks", "ntk"),
)


def pytest_collectstart(collector):
    """nbval compares no pictures: not PNG, by itself, and not SVG, by this hook."""
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += ("image/svg+xml",)


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="everything, at length")


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes minutes; runs with --nightly")
    config.addinivalue_line("markers", "optimized: is about what XLA makes of a program")
    if config.option.nightly:
        settings.load_profile(MANY)
    xla.set_flags(quick=not config.option.nightly)
    jax.config.update(SWITCH, not config.option.nightly)
    # Of processes that tests start; nbval executes pages as a build does, to the same rounding.
    os.environ[SWITCH.upper()] = str(not config.option.nightly and not config.option.nbval)


def pytest_collection_modifyitems(config, items):
    if not config.option.nightly:
        late = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    rank = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}

    def place(item):
        first = -1 if item.path.suffix == ".ipynb" else rank.get(item.path.name, len(rank))
        return item.get_closest_marker("optimized") is None, first

    # Optimized ones first: changing between the two forgets all programs, of which there are few.
    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture of the test: one may compile what the test runs."""
    wanted = not (item.config.option.nightly or item.get_closest_marker("optimized"))
    if jax.config.read(SWITCH) != wanted:
        jax.config.update(SWITCH, wanted)
        jax.clear_caches()  # of programs compiled the other way


def pytest_runtest_teardown(item, nextitem):
    """A program keeps a few pieces of memory mapped, of which Linux lets a process have 65,530: the
    many that nightly compiles are gone with their file."""
    if item.config.option.nightly and (nextitem is None or nextitem.path != item.path):
        jax.clear_caches()


@pytest.fixture
def no_constants():
    """A program that captures more than a few numbers is an error."""
    name = "jax_captured_constants_warn_bytes"
    before = getattr(jax.config, name)
    jax.config.update(name, 200)
    yield
    jax.config.update(name, before)
