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
<link rel="icon" href="data:,"><style>
html[data-theme=dark] { background: #111; color: #eee }
html[data-theme=dark] #night { color: #444 }
</style></head><body><main><article><h1>A page</h1><p>Text with <code>\\(x\\)</code>.</p>
BODY</article></main></body></html>"""
DIAL = """<label>Period <input type="range" id="dial" max="5" value="5" OPTIONS></label>
<output id="shown">5</output><script>
document.querySelector("#dial").oninput = (event) => { TURNED };</script>"""
TURNS = DIAL.replace("TURNED", 'document.querySelector("#shown").textContent = event.target.value')
ADDS = 'document.querySelector("p").after(document.createElement("button"))'
DRAWN = '<svg width="{}" viewBox="0 0 {} 30"><text y="20" font-size="12">text</text></svg>'
# A figure in a file of its own, 590 pixels wide: its print is known, not seen.
FIGURE = (
    '<img id="figure" alt="A figure" style="width: {}px" src="data:image/svg+xml,'
    "%3Csvg xmlns='http://www.w3.org/2000/svg' width='590' height='20'/%3E\">"
)
WIDE = """<p><b id="wide" style="display: inline-block; width: 500px">wide</b></p>
<div style="overflow-x: auto" tabindex="0"><p style="width: 900px">scrolls</p></div>"""
PALE = '<details><summary>More</summary><p id="pale" style="color: #999">folded</p></details>'
TABLE = '<table><tr><th id="corner"></th><th>A</th></tr><tr><th>B</th><td>1</td></tr></table>'
ELSEWHERE = "http://elsewhere.example/a.css"
BOTH, DESK, PHONE = "1360 390", "1360", "390"

# name -> (body, widths with the fault, end of the selector, pattern of what is wrong)
FAULTS = {
    "asks": (f'<link rel="prefetch" href="{ELSEWHERE}">', BOTH, ELSEWHERE, "asked of another site"),
    "raises": ("<script>undefinedThing()</script>", BOTH, "script", "is not defined"),
    "small": (DRAWN.format("100%", 3000), PHONE, "svg > text", r"text of \d\.\d pixels"),
    "wide": (WIDE, PHONE, "#wide", "scrolls sideways, 5.. in 390"),
    "fails": (
        '<mjx-merror data-mjx-error="Undefined control sequence \\foo">x</mjx-merror>',
        BOTH,
        "mjx-merror",
        r"a formula fails: Undefined control sequence \\foo",
    ),
    "unset": ('<span class="math" id="unset">x</span>', BOTH, "#unset", "TeX is left as it is: x"),
    "wordless": ('<button id="wordless"></button>', BOTH, "#wordless", "button-name"),
    "corner": (TABLE, BOTH, "#corner", "empty-table-header"),
    "folded": (PALE, DESK, "#pale", "color-contrast: .*#999999"),
    "night": ('<p id="night">dim</p>', PHONE, "#night", "color-contrast: .*#444444"),
    "aside": (TURNS.replace("OPTIONS", 'tabindex="-1"'), BOTH, "#dial", "Tab does not reach it"),
    "silent": (DIAL.replace("TURNED", ""), BOTH, "#dial", "nothing shown changes"),
    "then": (TURNS.replace("=> {", "=> { " + ADDS + ";"), BOTH, "button", "button-name"),
}
SOUND_BODY = PALE.replace("#999", "inherit") + DRAWN.format(300, 300) + FIGURE.format(360) + TURNS
PAGES = {"sound": (SOUND_BODY, "", "", "")} | FAULTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    for name, (body, *_) in PAGES.items():
        (folder / f"{name}.html").write_text(SOUND.replace("BODY", body), "utf8")
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """(page, width) -> faults, all pages in one browser."""
    return asyncio.run(browser.visits(folder, browser.names(folder)))


@pytest.mark.parametrize("name", PAGES)
def test_each_planted_fault_is_named_and_nothing_else(found, name):
    _, widths, selector, pattern = PAGES[name]
    for width in (1360, 390):
        faults = list(found[f"{name}.html", width])
        if name == "asks":  # the console tells of a request that fails, too
            faults = [fault for fault in faults if "console error" not in fault[1]]
        assert bool(faults) == (str(width) in widths.split()), faults
        for where, what in faults:
            assert where.endswith(selector)
            assert re.search(pattern, what)


def test_command_names_faults_and_a_missing_browser(folder, tmp_path, monkeypatch, capsys):
    assert browser.main(tmp_path) == 2
    (tmp_path / "page.html").write_text((folder / "wordless.html").read_text())
    assert browser.main(tmp_path) == 1
    assert "page.html at 1360 and 390: #wordless: button-name" in capsys.readouterr().out
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    assert browser.main(tmp_path) == 0
    assert "no chromium" in capsys.readouterr().out
