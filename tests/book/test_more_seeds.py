"""A record of any experiment gets more seeds later: on toy data, with few and short runs.

Apart from `test_tiers`, so that another process runs it.
"""

import json
import shutil

import pytest
import xarray as xr
import yaml
from iterlin_book import pages, states
from tiny_tiers import ROOT, TIER, TINY, checkout, record_of, record_path, run

__all__ = ["checkout"]
pytestmark = pytest.mark.nightly


def completing():
    texts = {page: (ROOT / "book" / f"{page}.md").read_text("utf8") for page in TINY}
    return [page for page, text in texts.items() if "page.completed(" in text]


@pytest.mark.parametrize("page", completing())
def test_a_record_gets_more_seeds_without_those_that_it_has(checkout, page):
    """It is the record that one run of all seeds makes, though the store knows none of them."""
    path = pages.parameter_file(checkout, page, TIER)
    text, store = path.read_text("utf8"), checkout / "_build" / "runs"
    record_path(checkout, page).unlink(missing_ok=True)
    found = []
    try:
        for seeds in (3, 1, 3):  # three at once; and one, to which come two more
            shutil.rmtree(store, ignore_errors=True)
            path.write_text(yaml.safe_dump(yaml.safe_load(text) | {"num_seeds": seeds}), "utf8")
            done = run(checkout, page)
            assert done.returncode == states.DONE, done.stdout[-5000:]
            record = record_of(checkout, page)
            found.append(record.drop_vars([n for n in record if n.endswith("seconds")]))
    finally:
        path.write_text(text, "utf8")
    whole, one, more = found
    assert "parts" not in whole.attrs
    assert [part["seeds"] for part in json.loads(more.attrs["parts"])] == [[0], [1, 2]]
    of_seeds = [name for name, variable in more.items() if "seed" in variable.dims]
    xr.testing.assert_equal(more[of_seeds].sel(seed=[0]), one[of_seeds])
    # Fewer seeds go through a program at once, which rounds otherwise, and may turn one of the few
    # images from right to wrong.
    counts = [name for name in more if "accuracy" in name or "gap" in name]
    alike = [each.drop_attrs().drop_vars(counts) for each in (more, whole)]
    xr.testing.assert_allclose(*alike, rtol=1e-3, atol=1e-5)
    assert more.dtypes == whole.dtypes
