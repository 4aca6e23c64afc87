"""The book as one PDF: chapters in order, links and outline that lead there, no folded code."""

import pytest
from iterlin_book import chromium, document, pages, pdf

try:
    chromium.found()
except chromium.Missing as reason:
    pytest.skip(str(reason), allow_module_level=True)
import pikepdf

HTML = """<!doctype html><html lang="en"><head><title>x</title>
<script src="_static/theme.js"></script></head><body><nav id="side">side bar</nav><article>
<h1 id="top">{title}<a class="headerlink" href="#top">#</a></h1>{body}</article></body></html>"""
FOLDED = '<details class="hide above-input"><summary>Code</summary>folded code</details>'
BODIES = {
    "index": '<p>See <a href="part/second.html#twice">there</a>, <a href="part/first.html">here</a>'
    f', <a href="https://example.org/">elsewhere</a>.</p>{FOLDED}',
    "part/first": '<h2 id="twice">One</h2><details><summary>s</summary>opened</details>'
    '<p><a href="#twice">above</a> <a href="../_modules/x.html">source</a></p>',
    "part/second": '<h2 id="twice">Two</h2><img src="../_images/a.png" alt="A plot">'
    '<noscript><img src="data:,x" alt="Still"></noscript><output for="twice top">3</output>',
}
TOC = """root: index
parts:
  - caption: A part
    chapters: [{file: part/first}]
  - caption: Another
    chapters: [{file: part/second}]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("book")
    for name, body in BODIES.items():
        html, source = root / "_build" / "html" / f"{name}.html", root / "book" / f"{name}.md"
        for path in (html, source):
            path.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
        html.write_text(HTML.format(title=f"Title of {name}", body=body))
    (root / "_toc.yml").write_text(TOC)
    (root / "_config.yml").write_text("title: A book\n")
    (root / "CITATION.cff").write_text("title: Of a book\nversion: 1.2\nauthors: [{name: Us}]\n")
    return root


@pytest.fixture(scope="module")
def printed(root):
    assert pdf.main(["--root", str(root)]) == 0
    return root / "_build" / "iterlin.pdf"


def titles(items):
    return [(item.title, titles(item.children)) for item in items]


def test_the_contents_have_parts(root):
    assert document.parts(root) == [
        (None, ["index"]),
        ("A part", ["part/first"]),
        ("Another", ["part/second"]),
    ]


def test_the_document_is_whole(root):
    text = document.whole(root, root / "_build" / "html", {"part/first": 7})
    assert "folded code" not in text
    assert "side bar" not in text
    assert "theme.js" not in text
    assert "headerlink" not in text
    assert '<details open="">' in text
    assert 'src="_images/a.png"' in text
    assert '<img alt="Still" src="data:,x"/>' in text
    assert "noscript" not in text
    assert 'href="https://example.org/"' in text
    assert '<a href="#part-second--twice">there</a>' in text
    assert '<a href="#part-first--twice">above</a>' in text
    assert '<a href="#chapter-part-first">here</a>' in text
    assert "<a>source</a>" in text
    assert 'for="part-second--twice part-second--top"' in text
    assert '<span class="print-number">7</span>' in text
    assert text.index("One") < text.index("Two")
    ids = [part.split('"')[0] for part in text.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_the_pdf_has_an_outline_links_tags_and_no_dates(printed):
    with pikepdf.open(printed) as opened:
        with opened.open_outline() as outline:
            assert titles(outline.root) == [
                ("Contents", []),
                ("Title of index", []),
                ("A part", [("Title of part/first", [("One", [])])]),
                ("Another", [("Title of part/second", [("Two", [])])]),
            ]
        assert opened.Root.MarkInfo.Marked
        assert dict(opened.docinfo) == {"/Title": "Of a book", "/Author": "Us"}
        targets = {str(link.Dest) for page in opened.pages for link in page.get("/Annots", [])
                   if "/Dest" in link}  # fmt: skip
        assert {"/chapter-part-first", "/part-second--twice"} <= targets
        assert targets <= set(opened.Root.Dests)


def test_the_same_book_gives_the_same_bytes(root, printed):
    before = printed.read_bytes()
    assert pdf.main(["--root", str(root)]) == 0
    assert printed.read_bytes() == before


def test_without_chromium_it_says_so_and_leaves_no_older_print(root, printed, monkeypatch, capsys):
    kept = printed.read_bytes()
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    assert pdf.main(["--root", str(root)]) == 3
    assert "no PDF was made: no chromium" in capsys.readouterr().err
    assert not printed.exists()
    printed.write_bytes(kept)


def test_a_page_that_is_not_built_is_named(root, tmp_path):
    with pytest.raises(pages.BookError, match="make book"):
        document.whole(root, tmp_path)
