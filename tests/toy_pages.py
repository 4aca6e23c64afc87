"""A small book whose pages record runs, for the tests of records and of what pages do with them."""

import xarray as xr

PAGE = """\
# Trial

```{code-cell} python
:tags: [parameters]
tier = "quick"
num_seeds = 2
periods = [1, 10]
```

```{code-cell} python
from iterlin_study.report.page import Page

page = Page("trial", globals(), extends=True)
```
"""
FILES = {
    "_toc.yml": "format: jb-book\nroot: index\n",
    "book/index.md": "# Toy\n",
    "book/experiments/trial.md": PAGE,
    "book/experiments/trial.laptop.yml": "num_seeds: 3\nperiods: [5, 20]\n",
}
VALUES = {"tier": "laptop", "num_seeds": 3, "periods": (5, 20)}  # as in trial.laptop.yml
# A row of a ledger, on that page.
CLAIM = {
    "id": "C0",
    "version": "v3",
    "place": "section 0",
    "page": "experiments/trial",
    "experiment": "trial",
    "claim": "It falls.",
    "paper": "a figure",
    "expected": "reproduced",
    "statements": [{"says": "drop", "statistic": "drop", "above": 0.5}],
}


def write(root):
    """The book in a folder, which is returned."""
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf8")
    return root


def results(periods=(5.0, 20.0), num_seeds=3):
    losses = [[period / 4 + seed for seed in range(num_seeds)] for period in periods]
    coords = {"period": list(periods), "seed": list(range(num_seeds))}
    return xr.Dataset({"loss": (("period", "seed"), losses)}, coords)
