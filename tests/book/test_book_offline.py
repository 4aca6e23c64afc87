"""The check of the built book finds what it is there to find, and nothing in a sound page."""

import pytest
from iterlin_book import offline

PAGE = """<html><head><link rel="stylesheet" href="_static/a.css"></head><body><article>
<h1 id="top">Title</h1> <a href="#top">up</a> <a href="other.html#there">on</a>
<a href="https://example.org/">elsewhere</a> <code>{eq}`shown` a ?? b</code>
<img src="_static/a.png" alt="A plot">{extra}</article></body></html>"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "a.css").write_text("p { color: red }")
    (tmp_path / "_static" / "a.png").write_bytes(b"")
    (tmp_path / "other.html").write_text('<html><body><p id="there">text</p></body></html>')
    return tmp_path


def problems(folder, extra):
    (folder / "page.html").write_text(PAGE.replace("{extra}", extra))
    return list(offline.check(folder))


def test_a_sound_page_passes(folder):
    caption = '<figure><img src="_static/a.png"><figcaption>Seen.</figcaption></figure>'
    assert problems(folder, f'{caption}<a href="">here</a><link rel="stylesheet">') == []


FAR = "https://c.example/"
PICTURE = '<img src="_static/a.png"{}>'


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (f'<script src="{FAR}x.js"></script>', f"<script> loads {FAR}x.js"),
        (f"<style>@import '{FAR}f';</style>", f"<style> loads {FAR}f"),
        ('<p style="background: url(//c.example/f)">', "<p> loads //c.example/f"),
        ('<a href="gone.html">x</a>', "dead link gone.html"),
        ('<a href="other.html#gone">x</a>', "dead anchor other.html#gone"),
        ("See {eq}`eq-1`.", "unrendered: {eq}`"),
        ("| K | loss | | — | — | | 1 | 0.3 |", "unrendered: | — |"),
        (PICTURE.format(""), "picture without words: _static/a.png"),
    ],
)
def test_each_planted_problem_is_one_line(folder, extra, problem):
    assert problems(folder, extra) == [f"page.html: {problem}"]


def test_style_sheets_are_searched_and_an_empty_folder_is_a_problem(folder, tmp_path_factory):
    (folder / "_static" / "a.css").write_text("@import url('https://fonts.example/f.css');")
    assert problems(folder, "") == ["_static/a.css: loads https://fonts.example/f.css"]
    empty = tmp_path_factory.mktemp("empty")
    assert list(offline.check(empty)) == [f"{empty}: no pages"]
