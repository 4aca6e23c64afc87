"""A small library, a page that records with it, and its tiers: what origins are read off."""

import subprocess

import xarray as xr
from iterlin.study.origins import Sources

LIBRARY = {
    "__init__.py": "from iterlin.steps import step\n",
    "steps.py": '''\
"""Steps."""

import jax

RATE = 0.5


@jax.custom_jvp
def square(x, power=2):
    return x**power


@square.defjvp
def _rule(primals, tangents):
    return 2 * primals[0] * tangents[0]


def step(x):
    """One step."""
    return x - RATE * square(x)
''',
    "errors.py": "LIMIT = 3\n\n\ndef error(x):\n    return min(abs(x), LIMIT)\n",
    "study/__init__.py": "",
    "study/page.py": "class Page:\n    pass\n",
    "study/plotting.py": "def use_style(size=1):\n    pass\n",
}
PAGE = '''\
# Trial

Prose.

```{code-cell} python
:tags: [parameters]
tier = "quick"
num_seeds = 2
periods = [1, 10]
```

```{code-cell} python
---
tags: [hide-input]
---
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin.steps import step
from iterlin.study import plotting
from iterlin.study.page import Page

page = Page("trial", globals())
plotting.use_style(size=2)
plt.rcParams.update({"font.size": 9})
if num_seeds < 1:
    raise ValueError("one seed at least")
```

More prose.

```{code-cell} python
START = 2.0
COLORS = ["red", "blue"]


def run(seed, period):
    """One run."""
    x = START + seed
    for _ in range(period):
        x = step(x)
    return x


losses = [[run(seed, period) for seed in range(num_seeds)] for period in periods]
assert np.isfinite(losses).all()
print("finished", losses)
coords = {"period": periods, "seed": np.arange(num_seeds)}
live = xr.Dataset({"loss": (("period", "seed"), losses)}, coords)
live = page.save(live, data="made up")
```

```{code-cell} python
plt.plot(live["period"], live["loss"], color=COLORS[0])
```
'''
OTHER = (
    PAGE.replace("# Trial", "# Other")
    .replace('"trial"', '"other"')
    .replace("iterlin.steps import step", "iterlin.errors import error as step")
)
PAGES = {"index.md": "# Toy\n", "experiments/trial.md": PAGE, "experiments/other.md": OTHER}
TIERS = {
    "experiments/trial.laptop.yml": "num_seeds: 3\nperiods: [5, 20]\n",
    "experiments/other.laptop.yml": "like: trial\nnum_seeds: 4\n",
}
SOURCES = Sources(LIBRARY, "", PAGES, TIERS, {"bench/peers/ours": []})


def edited(*edits, found=SOURCES):
    """The sources after (path, old, new); a path is one in book/ or in the library."""
    for path, old, new in edits:
        field = next(f for f in ("pages", "tiers", "library") if path in getattr(found, f))
        texts = dict(getattr(found, field))
        assert old in texts[path], old
        texts[path] = texts[path].replace(old, new)
        found = found._replace(**{field: texts})
    return found


def write(root, found=SOURCES):
    """The sources as the files of a project."""
    for path, text in {
        "_toc.yml": "format: jb-book\nroot: index\n",
        **{f"lib/iterlin/{path}": text for path, text in found.library.items()},
        **{f"book/{path}": text for path, text in (found.pages | found.tiers).items()},
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf8")
    return root


def commit(root, message="As it is"):
    """Commit everything, in a repository of the folder's own; returns the commit."""

    def git(*arguments):
        settings = ("user.name=toy", "user.email=toy@example.org", "commit.gpgsign=false")
        options = (word for setting in settings for word in ("-c", setting))
        command = ["git", "-C", str(root), *options, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", message)
    return git("rev-parse", "HEAD")


def results(periods=(5.0, 20.0), num_seeds=3):
    losses = [[period / 4 + seed for seed in range(num_seeds)] for period in periods]
    coords = {"period": list(periods), "seed": list(range(num_seeds))}
    return xr.Dataset({"loss": (("period", "seed"), losses)}, coords)
