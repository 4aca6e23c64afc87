"""A page begins with the claims that it judges and with the figure of its record."""

import xarray as xr
from iterlin_study.records import provenance, records
from iterlin_study.report import claims, openings

BOOK = provenance.project_root() / "book"


def test_a_page_opens_with_a_closed_line_for_each_of_its_claims(displayed):
    page = claims.load_claims()[0]["page"]
    openings.show(page)
    rows = [row for row in claims.load_claims() if row["page"] == page]
    assert displayed[0].data.count("<details>") == len(rows)


def test_a_figure_is_drawn_of_the_record_there_is_or_what_it_lacks_is_said(monkeypatch, displayed):
    record, drawn = xr.Dataset({"drop": 1.0}), []
    monkeypatch.setattr(records, "best", {"trial": record}.get)
    openings.figure("experiments/trial", drawn.append)
    openings.figure("experiments/other", drawn.append)
    assert drawn == [record]
    openings.figure("experiments/trial", lambda record: record["new"])
    assert "older than this page: it lacks" in displayed[0].data


def test_every_page_that_judges_claims_opens_with_them():
    for page in {row["page"] for row in claims.load_claims()}:
        assert f'openings.show("{page}")' in (BOOK / f"{page}.md").read_text("utf8")
