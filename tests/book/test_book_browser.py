"""The check in a browser finds each kind of fault, names it, and passes a sound page."""

import re
from contextlib import redirect_stdout
from io import StringIO

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
@media (min-width: 1000px) and (max-width: 1200px) { #middle { width: 1250px } }
</style></head><body><main><article><h1>A page</h1><p>Text with <code>\\(x\\)</code>.</p>
BODY</article></main></body></html>"""
DIAL = """<label>Period <input type="range" id="dial" max="5" value="5" OPTIONS></label>
<output id="shown">5</output><script>
document.querySelector("#dial").oninput = (event) => { TURNED };</script>"""
TURNS = DIAL.replace("TURNED", 'document.querySelector("#shown").textContent = event.target.value')
ADDS = 'document.querySelector("p").after(document.createElement("button"))'
DRAWN = '<svg width="{}" viewBox="0 0 {} 30"><text y="20" font-size="12">text</text></svg>'
# A figure in a file of its own, 590 pixels wide: its print is known, not seen.
FIGURE = '<img id="figure" alt="A figure" style="width: {}px" src="data:image/svg+xml,'
FIGURE += "%3Csvg xmlns='http://www.w3.org/2000/svg' width='590' height='20'/%3E\">"
WIDE = """<p><b id="wide" style="display: inline-block; width: 500px">wide</b></p>
<div style="overflow-x: auto" tabindex="0"><p style="width: 900px">scrolls</p></div>"""
PALE = '<details><summary>More</summary><p id="pale" style="color: #999">folded</p></details>'
TABLE = '<table><tr><th id="corner"></th><th>A</th></tr><tr><th>B</th><td>1</td></tr></table>'
ELSEWHERE = "http://elsewhere.example/a.css"
BOTH, DESK, PHONE = "390 and 1360", "1360", "390"

# name -> (body, widths with the fault, end of the selector, pattern of what is wrong)
FAULTS = {
    "asks": (f'<link rel="prefetch" href="{ELSEWHERE}">', PHONE, ELSEWHERE, "is asked of another"),
    "raises": ("<script>undefinedThing()</script>", PHONE, "script", "is not defined"),
    "small": (DRAWN.format("100%", 3000), PHONE, "svg > text", r"text of \d\.\d pixels"),
    "wide": (WIDE, PHONE, "#wide", "scrolls sideways, 5.. in 390"),
    "middle": ('<p id="middle">x</p>', DESK, "#middle", "sideways, 12.. in 1100"),
    "fails": (
        '<mjx-merror data-mjx-error="Undefined control sequence \\foo">x</mjx-merror>',
        BOTH,
        "mjx-merror",
        r"a formula fails: Undefined control sequence \\foo",
    ),
    "unset": ('<span class="math" id="unset">x</span>', BOTH, "#unset", "TeX is left as it is: x"),
    "wordless": ('<button id="wordless"></button>', PHONE, "#wordless", "button-name"),
    "corner": (TABLE, PHONE, "#corner", "empty-table-header"),
    "folded": (PALE, DESK, "#pale", "color-contrast: .*#999999"),
    "night": ('<p id="night">dim</p>', PHONE, "#night", "color-contrast: .*#444444"),
    "aside": (TURNS.replace("OPTIONS", 'tabindex="-1"'), PHONE, "#dial", "Tab does not reach it"),
    "silent": (DIAL.replace("TURNED", ""), PHONE, "#dial", "nothing shown changes"),
    "then": (TURNS.replace("=> {", "=> { " + ADDS + ";"), PHONE, "button", "button-name"),
    "beside": ('<button id="beside"></button>', BOTH, "#beside", "button-name"),
}
SOUND_BODY = PALE.replace("#999", "inherit") + DRAWN.format(300, 300) + FIGURE.format(360) + TURNS
# A dial is turned on a page of its own, and the landing page is looked at whole at each width; the
# other faults share a page.
ALONE = {"aside": "aside", "silent": "silent", "then": "then", "beside": "index"}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What the command says of a sound page and of pages with planted faults."""
    folder = tmp_path_factory.mktemp("html")
    bodies = {"sound": SOUND_BODY, **{page: FAULTS[name][0] for name, page in ALONE.items()}}
    bodies["many"] = "\n".join(FAULTS[name][0] for name in FAULTS if name not in ALONE)
    for name, body in bodies.items():
        (folder / f"{name}.html").write_text(SOUND.replace("BODY", body), "utf8")
    with redirect_stdout(StringIO()) as said:
        assert browser.main(folder) == 1
    *lines, total = said.getvalue().splitlines()
    # The console tells of a request that fails, too.
    lines = [line for line in lines if f"{ELSEWHERE}: console error" not in line]
    assert total.startswith("6 pages, ")
    return lines


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_named_once_with_its_widths(lines, name):
    _, widths, selector, pattern = FAULTS[name]
    page = ALONE.get(name, "many")
    whole = rf"{page}\.html at {widths}: (.* )?\S*{re.escape(selector)}: .*{pattern}"
    assert len([line for line in lines if re.match(whole, line)]) == 1, lines


def test_nothing_but_the_planted_faults_is_named(lines):
    assert len(lines) == len(FAULTS), lines


def test_an_empty_folder_and_a_missing_browser_are_told(tmp_path, monkeypatch, capsys):
    assert browser.main(tmp_path) == 2
    (tmp_path / "page.html").write_text(SOUND)
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    assert browser.main(tmp_path) == 0
    assert "no chromium" in capsys.readouterr().out
