"""The check in a browser finds each kind of fault, names it, and passes a sound page."""

import asyncio
import re

import pytest
from iterlin_book import browser, chromium

try:
    chromium.found()
except chromium.Missing as reason:
    pytest.skip(str(reason), allow_module_level=True)

SOUND = """<!doctype html><html lang="en"><head><title>A page</title>
<link rel="icon" href="data:,"><style>{style}</style></head>
<body><main><article><h1>A page</h1><p>Text with <code>\\(x\\)</code>.</p>
{body}</article></main></body></html>"""
DIAL = '<label>Period <input type="range" id="dial" max="5" value="5" {options}></label>{shown}'
SHOWN = """<output id="shown">5</output><script>
document.querySelector("#dial").oninput = (event) => {
  document.querySelector("#shown").textContent = event.target.value;
  {extra}
};</script>"""
ADDS = 'document.querySelector("p").after(document.createElement("button"))'
DRAWN = '<svg width="{}" viewBox="0 0 300 30"><text y="20" font-size="{}">text</text></svg>'
# A figure in a file of its own, 590 pixels wide: its print is known, not seen.
FIGURE = (
    '<img id="figure" alt="A figure" style="width: {}px" src="data:image/svg+xml,'
    "%3Csvg xmlns='http://www.w3.org/2000/svg' width='590' height='20'/%3E\">"
)
SETS_DARK = "html[data-theme=dark] { background: #111; color: #eee }"
TURNS = DIAL.replace("{shown}", SHOWN.replace("{extra}", "")).replace("{options}", "")

# name -> (body, style, the faults as (widths, selector, what); both as patterns)
FAULTS = {
    "sound": (f"<details><summary>More</summary>it</details>{DRAWN.format(300, 12)}", "", []),
    "turns": (TURNS, "", []),
    "asks": (
        '<link rel="prefetch" href="http://elsewhere.example/a.css">',
        "",
        [("1360 390", "http://elsewhere.example/a.css", "asked of another site")],
    ),
    "lacks": (
        '<img src="gone.png" alt="A plot">',
        "",
        [("1360 390", "gone.png", "console error: .*404")],
    ),
    "shown": (FIGURE.format(360), "", []),
    "shrunk": (FIGURE.format(300), "", [("390", "#figure", "text of 7.6 pixels")]),
    "says": (
        '<script>console.error("it broke")</script>',
        "",
        [("1360 390", "says.html", "console error: it broke")],
    ),
    "raises": (
        "<script>undefinedThing()</script>",
        "",
        [("1360 390", "script", "undefinedThing is not defined")],
    ),
    "wide": (
        '<p><b id="wide" style="display: inline-block; width: 500px">wide</b></p>'
        '<div style="overflow-x: auto" tabindex="0"><p style="width: 900px">scrolls</p></div>',
        "",
        [("390", "#wide", "scrolls sideways, 5.. in 390")],
    ),
    "fails": (
        '<mjx-merror data-mjx-error="Undefined control sequence \\foo">x</mjx-merror>',
        "",
        [("1360 390", "mjx-merror", r"a formula fails: Undefined control sequence \\foo")],
    ),
    "raw": (
        '<section class="mathjax_ignore"><p id="raw">Of <b>\\(\\eta K\\)</b></p>'
        '<p id="dollars">Of $K = 1$</p></section>',
        "",
        [
            ("1360 390", "#raw > b", "TeX is left as it is"),
            ("1360 390", "#dollars", r"TeX is left as it is: Of \$K = 1\$"),
        ],
    ),
    "unset": (
        '<span class="math" id="unset">x</span>',
        "",
        [("1360 390", "#unset", "TeX is left as it is: x")],
    ),
    "wordless": (
        '<button id="wordless"></button>',
        "",
        [("1360 390", "#wordless", "button-name")],
    ),
    "misnamed": (
        '<button aria-label="Copy" id="misnamed">Take</button>',
        "",
        [("1360 390", "#misnamed", "label-content-name-mismatch")],
    ),
    "pale": (
        '<p id="pale" style="color: #999; background: #fff">pale</p>',
        "",
        [("1360 390", "#pale", "color-contrast: .*#999999")],
    ),
    "folded": (
        '<details><summary>More</summary><p id="folded" style="color: #999">folded</p></details>',
        "",
        [("1360", "#folded", "color-contrast: .*#999999")],
    ),
    "night": (
        '<p id="night">dim</p>',
        SETS_DARK + "html[data-theme=dark] #night { color: #444 }",
        [("390", "#night", "color-contrast: .*#444444")],
    ),
    "small": (
        DRAWN.format("100%", 12).replace("300 30", "3000 30"),
        "",
        [("390", "svg > text", r"text of \d\.\d pixels")],
    ),
    "aside": (
        TURNS.replace('max="5"', 'max="5" tabindex="-1"'),
        "",
        [("1360 390", "#dial", "Tab does not reach it")],
    ),
    "stuck": (
        TURNS.replace('max="5"', 'max="5" onkeydown="event.preventDefault()"'),
        "",
        [
            ("1360 390", "#dial", "arrow keys do not turn it"),
            ("1360 390", "#dial", "nothing shown changes"),
        ],
    ),
    "silent": (
        DIAL.replace("{options}", "").replace("{shown}", ""),
        "",
        [("1360 390", "#dial", "nothing shown changes")],
    ),
    "then": (
        DIAL.replace("{options}", "").replace("{shown}", SHOWN.replace("{extra}", ADDS)),
        "",
        [("1360 390", "button", "button-name")],
    ),
}


def write(folder, name):
    body, style, _ = FAULTS[name]
    style = style or SETS_DARK
    text = SOUND.replace("{style}", style).replace("{body}", body)
    (folder / f"{name}.html").write_text(text, "utf8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    for name in FAULTS:
        write(folder, name)
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    """Name -> its visits, all pages in one browser."""
    done = asyncio.run(browser.visits(folder, browser.names(folder)))
    return {name: [one for one in done if one.page == f"{name}.html"] for name in FAULTS}


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_named_and_nothing_else(seen, name):
    expected = FAULTS[name][2]
    assert [one.width for one in seen[name]] == [1360, 390]
    for one in seen[name]:
        faults = [
            (where, what)
            for where, what in one.faults
            # A request that fails is told by the console, too.
            if not (name == "asks" and "console error" in what)
        ]
        wanted = [fault for fault in expected if str(one.width) in fault[0].split()]
        assert len(faults) == len(wanted), faults
        for (where, what), (_, selector, pattern) in zip(faults, wanted, strict=True):
            assert where.endswith(selector)
            assert re.search(pattern, what)


def test_command_names_the_faults(folder, capsys):
    assert browser.main([str(folder), "--page", "wordless"]) == 1
    assert "wordless.html at 1360 and 390: #wordless: button-name" in capsys.readouterr().out
    assert browser.main([str(folder), "--page", "sound"]) == 0


def test_bad_arguments_are_named(folder, tmp_path, capsys):
    assert browser.main([str(folder), "--page", "nowhere"]) == 2
    assert "has no page nowhere.html" in capsys.readouterr().err
    assert browser.main([str(tmp_path)]) == 2
    assert "has no pages" in capsys.readouterr().err


def test_without_chromium_it_says_so(folder, monkeypatch, capsys):
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    assert browser.main([str(folder)]) == 0
    assert "not checked in a browser: no chromium" in capsys.readouterr().out


def test_one_page_of_source_code_stands_for_all(tmp_path):
    for name in ("a", "_modules/b", "_modules/c", "_static/template"):
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert browser.names(tmp_path) == ["_modules/b.html", "a.html"]
    assert browser.names(tmp_path, ["_modules/c"]) == ["_modules/c.html"]
