"""The book as one PDF: all pages in order, with an outline and links that lead there."""

import pytest
import toy_book
from iterlin_book import chromium, merge, pdf

SETTINGS = '## Settings\n\nSee <a href="#settings">above</a> and {doc}`/other`.\n\n'


def titles(items):
    return [(item.title, titles(item.children)) for item in items]


def test_without_a_browser_no_pdf_is_made_and_no_older_one_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    path = tmp_path / "_build" / "iterlin.pdf"
    path.parent.mkdir()
    path.touch()
    assert pdf.main(tmp_path) == 3
    assert "no PDF was made: no chromium" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.nightly
def test_pdf_has_an_outline_and_links(tmp_path):
    try:
        chromium.found()
    except chromium.Missing as reason:
        pytest.skip(str(reason))
    import pikepdf

    root = toy_book.create(tmp_path)
    toy_book.edit(root, "book/last.md", "# Last page\n", f"# Last page\n\n{SETTINGS}")
    toy_book.edit(root, "book/index.md", "See {eq}", f"{SETTINGS}See {{eq}}")
    (root / "CITATION.cff").write_text("title: Of a book\n")
    merge.build_source(root, root / "_build" / "source")  # as if no page had run yet
    assert pdf.main(root) == 0
    with pikepdf.open(root / "_build" / "iterlin.pdf") as opened:
        with opened.open_outline() as outline:
            found = titles(outline.root)
        assert str(opened.docinfo["/Title"]) == "Of a book"
        assert opened.Root.MarkInfo.Marked
        links = [link for page in opened.pages for link in page.get("/Annots", [])]
        targets = {str(link.Dest) for link in links if "/Dest" in link}
        assert {"/document-other", "/settings", "/document-last--settings"} <= targets
        assert targets <= set(opened.Root.Dests)
    text = str(found)
    order = ["Toy", "First page", "A picture", "Second page", "Last page"]
    assert sorted(order, key=text.index) == order
    assert "#" not in text
