"""A tiny tier of every experiment's page, and a copy of the book that has it."""

import gzip
import shutil
import subprocess

import numpy as np
import pytest
import stored_files
import toy_book
import xarray as xr
import yaml
from iterlin_book import pages
from iterlin_study.data.images import CIFAR_CLASSES
from iterlin_study.records import experiment_pages
from toy_book import ROOT

TIER = "laptop"
PER_CLASS = 10  # photographs of each of the ten classes, to train on and to test on
FIGURES = 60  # handwritten digits

# In place of the values in the page's own file of the tier; the other values stay.
TINY = yaml.safe_load("""
images: &images
  network: {name: lenet, channels: 3, hidden: [4]}
  train_size: 40
  validation_size: 20
  test_size: 40
  batch_size: 5
  num_seeds: 2
two_periods: &two_periods {<<: *images, period: 10, linearizations: 4, halve_after: [2]}

algorithm/regimes:
  {num_seeds: 2, periods: [1, 10, 1000, 1000000, 100000000], max_gradient_steps: 2000,
   explicit_period: 1000}
experiments/xor:
  {num_seeds: 2, periods: [1, 10, 100000], dampings: [2.0, 0.0002], max_gradient_steps: 1000,
   max_linearizations: 20, max_damped_steps: 200}
experiments/damping_quintic:
  {num_seeds: 8, dampings: [0.001, 0.01, 0.1, 1.0, 10.0], times: [1000.0, 1.0], max_steps: 100}
experiments/few_updates: *two_periods
experiments/converged:
  {<<: *images, pool: 60, sizes: [20, 40], other_size: 20, times: [1, 5], updates: [3, 2],
   num_looks: 3, few: 1, long: 5, lazy_time: 20, sgd_batch_size: 10, sgd_steps: [20, 30],
   probe_size: 40}
experiments/width:
  {<<: *images, pool: 60, train_size: 20, times: [1, 5], max_updates: 3, num_looks: 3, few: 1,
   long: 5, lazy_time: 20, sgd_batch_size: 10, sgd_steps: 20}
experiments/filters: {<<: *two_periods, num_columns: 3}
experiments/probes: {<<: *two_periods, probe_size: 40, num_snapshots: 3}
experiments/batching: {<<: *images, periods: [1, 5, 20], num_steps: 40, num_readings: 4}
experiments/data_scaling:
  {<<: *images, sizes: [20, 40], num_steps: [200, 300], periods: [1, 5, 10]}
experiments/damping_cnn:
  {<<: *images, max_period: 20, check_every: 5, num_steps: 40, num_readings: 4}
experiments/exact_solves:
  {<<: *images, pool: 40, train_size: 20, times: [1, 5], num_linearizations: 2, sgd_batch_size: 10,
   sgd_steps: 20}
beyond/when_to_relinearise:
  {<<: *images, pool: 40, train_size: 20, probe_size: 10, times: [1, 5], factors: [4],
   thresholds: [1], checks: [0.5], longest: 5, most: 3, growing_time: 20, event_time: 10,
   sizes: [10], num_looks: 4, sgd_batch_size: 10, sgd_steps: 20}
beyond/early_or_late:
  {<<: *images, pool: 40, train_size: 20, num_periods: 3, short: 1, long: 5,
   long_at: [[], [1], [2], [3], [2, 3]], kernel_size: 10}
beyond/how_long:
  {<<: *images, pool: 40, train_size: 20, num_periods: 3, short: 1, places: [1, 2], lengths: [2, 5]}
beyond/how_wide:
  {<<: *images, network: {name: lenet, hidden: [4]}, channels: [8, 50], pool: 40, train_size: 20,
   num_periods: 3, short: 1, long: 5, other_lengths: [2]}
beyond/damp_early:
  {<<: *images, pool: 40, train_size: 20, num_periods: 3, short: 1, long: 5, damped: [0, 2, 3]}
beyond/grokking:
  {modulus: 7, other_moduli: [5], width: 8, decays: [1.0, 2.0], times: [0.0, 1.0, 3.0, .inf],
   units: 4, step_size: 0.02, kernel_size: 10, num_seeds: 2}
beyond/grokking_period:
  {modulus: 7, width: 8, decays: [1.0, 2.0], shortest: [0.5, 0.5], scaled_shortest: [0.5],
   num_periods: 2, updates: 3, step_size: 0.02, num_seeds: 2}
beyond/grokking_solves:
  {modulus: 7, width: 8, decays: [0.01], judged: 0.01, times: [1.0, 2.0], problems: 3,
   step_size: 0.02, num_seeds: 2}
beyond/grokking_schedules:
  {modulus: 7, width: 8, fixed: [1.0], longest: [1.0], early_long: [2.0], thresholds: [0.75],
   transformer: {width: 8, hidden: 8, share: 0.7}, transformer_fixed: [0.2],
   transformer_thresholds: [0.5], transformer_units: 1, units: 4, step_size: 0.02, num_seeds: 2}
beyond/grokking_layers:
  {modulus: 7, width: 8, half_times: [0.5, 1.0], units: 2, step_size: 0.02, num_seeds: 2}
beyond/language_model:
  {folders: [linear_model], length: 8, held: 20, width: 16, num_seeds: 2, level: 3.6,
   sizes: {new text: 4, the same text: 4, little new text: 2},
   visits: {new text: {"1": 3, "10": 3, "100": 2, "1 to 100": 3, AdamW: 20},
            the same text: {"1": 3, "10": 3, "100": 2, "1 to 100": 3, AdamW: 5},
            little new text: {"10": 2, "100": 2, AdamW: 5}}}
experiments/full_solve:
  {<<: *images, num_steps: 40, num_adam_steps: 20, period: 10, num_linearizations: 3,
   check_every: 5}
experiments/period_sweep:
  {<<: *images, periods: [1, 10, 100, .inf], num_steps: 2400, adam_batch_size: 5, check_every: 5,
   solve_cap: 20, adam_steps: 20}
experiments/rescaling:
  {<<: *images, total_time: 0.4, time_periods: [0.0, 0.1, 0.2], num_readings: 4, diagnose: 8,
   order_size: 12, order_counts: [5, 15], order_draws: 2, order_seeds: 2, boundary_size: 10,
   boundary_multiples: [0.5, 1.1, 2.0], boundary_periods: [1, 2, 5], boundary_steps: 20,
   boundary_readings: 4}
experiments/resnet:
  {<<: *images, width: 2, seen: 20, plain: {step_size: 0.05, period: 20, num_steps: 60},
   batch: {step_size: 0.02, period: 20, num_steps: 100},
   frozen: {step_size: 0.02, period: 20, num_steps: 100}, num_evaluations: 3}
experiments/workshop:
  {<<: *images, mnist_train_size: 40, cifar_train_size: 40, mnist_validation_size: 20,
   cifar_validation_size: 20, mnist_test_size: 40, cifar_test_size: 40,
   mnist_periods: [1, 5, .inf], mnist_steps: 60, larger_periods: [1, 5, 10, .inf],
   larger_steps: 60, smaller_periods: [1, 10], smaller_steps: 60, other_steps: 20,
   boundary_size: 10, boundary_multiples: [0.5, 1.1, 2.0], boundary_periods: [1, 2, 5],
   boundary_linearizations: 2, plateau_size: 20, plateau_linearizations: 2}
beyond/exact_integration:
  {<<: *images, sizes: [20, 40], periods: [1, 10, 1000], num_steps: 20, num_linearizations: 2,
   num_readings: 5, first_alone: [], compared_periods: [10, 1000]}
beyond/what_goes_stale:
  {<<: *images, network: {name: lenet, channels: 3, hidden: [4], kernel_size: 3, padding: SAME},
   pool: 60, train_size: 20, batch_size: 5, times: [0.5, 1, 2], linearizations: [4, 4, 2],
   num_looks: 2, compared: 1}
beyond/fine_tuning:
  {weights: random, pool_size: 50, train_size: 40, validation_size: 20, test_size: 40,
   step_sizes: [0.003, 0.01], periods: [1, 5, .inf], num_steps: 10, num_seeds: 2, timed_steps: 2}
beyond/lazy_to_rich:
  {scales: [0.1, 1.0, 3.0], times: [0.5, 2.0, 8.0, 128.0, .inf], width: 8, other_widths: [4],
   sizes_of_weights: [2.0], train_size: 20, num_seeds: 2}
""")
IMAGES = TINY.pop("images")
TINY.pop("two_periods")
# Asked this often, the time is over.
STRIKES = """

from itertools import count

_asked = count()


def out_of_time() -> bool:
    return next(_asked) >= int(os.environ.get("ITERLIN_TEST_STRIKES", 10**9))
"""


def photographs(rng):
    """Noise around a colour that the class has, so that there is something to learn."""
    members = {}
    for label in CIFAR_CLASSES:
        colour = rng.integers(60, 196, 3)
        for part in ("test", "train"):
            for number in range(PER_CLASS):
                pixels = colour + rng.integers(-60, 60, (32, 32, 3))
                picture = stored_files.jpeg(pixels.astype(np.uint8))
                members[f"any/{part}/{label}/{number:04}.jpg"] = picture
    return members


def toy_data(folder, library):
    """Write small stand-ins for the files of MNIST and CIFAR-10, and a registry that lists them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    digits = [
        gzip.compress(stored_files.idx(values), mtime=0)
        for values in (rng.integers(0, 256, (FIGURES, 28, 28)), np.arange(FIGURES) % 10)
    ]
    contents = {"mnist": digits * 2, "cifar10-jpeg": [stored_files.tar_gz(photographs(rng))]}
    path = library / "data" / "registry.yml"
    registry = yaml.safe_load(path.read_text("utf8"))
    for name, parts in contents.items():
        for file, content in zip(registry[name]["files"], parts, strict=True):
            file["sha256"] = stored_files.digest(content)
            # Two of MNIST's parts have one content here, under names of their own.
            (folder / file["name"]).write_bytes(content)
    path.write_text(yaml.safe_dump(registry), "utf8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the book and the library, without records, whose pages have a tiny tier."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("_toc.yml", "requirements.lock"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "book", root / "book")
    library = root / "lib" / "iterlin_study"
    for name in ("iterlin", "iterlin_study"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "lib" / name, root / "lib" / name, ignore=ignored)
    toy_data(root / "images", library)
    with (library / "records" / "environment.py").open("a") as environment:
        environment.write(STRIKES)
    for page, values in TINY.items():
        path = pages.parameter_file(root, page, TIER)
        own = experiment_pages.tier_values(ROOT / path.relative_to(root))
        known = experiment_pages.defaults(pages.source(root, page))
        tiny = {name: value for name, value in values.items() if name in known}
        path.write_text(yaml.safe_dump(own | tiny), "utf8")
    return root


def run(root, page, **variables):
    told = {"ITERLIN_DATA": str(root / "images"), "XDG_CACHE_HOME": str(root / "cache")}
    variables = {**toy_book.environment(root), **told, **variables}
    command = toy_book.command("execute", page, "--tier", TIER)
    return subprocess.run(command, cwd=root, env=variables, **toy_book.PIPES)


def record_path(root, page):
    return root / "data" / "results" / page.rpartition("/")[2] / f"{TIER}.nc"


def record_of(root, page):
    path = record_path(root, page)
    if not path.is_file():
        return None
    with xr.open_dataset(path) as record:
        return record.load()
