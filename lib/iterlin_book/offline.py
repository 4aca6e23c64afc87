"""Check that the built book works without a network: ``python -m iterlin_book.offline``.

Nothing is loaded from elsewhere, every internal link and anchor exists, no markup is left
unrendered, and every picture has words. One line for each problem.
"""

import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

LOADED = ("src", "srcset", "poster", "data")  # attributes whose target a browser fetches by itself
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
REMOTE_CSS = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")
REMOTE_SCRIPT = re.compile(r"""https?://[^'"\s]+\.(?:m?js|css|woff2?)\b""")
LEFTOVER = re.compile(
    r"\{(?:cite|eq|numref|ref|doc|prf|term|math)\b[^}]*\}`?|\?\?|\[\?\]|\| (?:---|—) \|"
)
FILE_NAME = re.compile(r"\S+\.(png|svg|jpe?g|gif)$")


def check(folder="_build/html"):
    """Yield all problems of the pages and style sheets in a folder as lines of text."""
    folder = Path(folder).resolve()
    # Themes keep templates of their own among the static files: no reader opens them.
    html = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    if not html:
        yield f"{folder}: no pages"
    for path in html:
        page = parsed(path)
        for problem in (*remote(page), *wordless(page), *unrendered(page), *dead(page, path)):
            yield f"{path.relative_to(folder)}: {problem}"
    for path in sorted(folder.rglob("*.css")):
        for address in REMOTE_CSS.findall(path.read_text("utf8", errors="replace")):
            yield f"{path.relative_to(folder)}: loads {address}"


@cache
def parsed(path):
    return BeautifulSoup(path.read_text("utf8"), "html.parser")


@cache
def anchors(path):
    tags = parsed(path).select("[id], a[name]")
    return {"", *(tag.get("id") or tag.get("name") for tag in tags)}


def remote(page):
    for tag in page.find_all(True):
        addresses = [one for name in LOADED for one in re.split(r",\s+", tag.get(name, ""))]
        if tag.name == "link" and LOADING_LINKS & {kind.lower() for kind in tag.get("rel", [])}:
            addresses.append(tag.get("href", ""))
        text = tag.get("style", "") + (tag.get_text() if tag.name == "style" else "")
        addresses += REMOTE_CSS.findall(text)
        if tag.name == "script":
            addresses += REMOTE_SCRIPT.findall(tag.get_text())
        for address in addresses:
            if re.match(r"\s*(https?:)?//", address):
                yield f"<{tag.name}> loads {address.strip()}"


def dead(page, path):
    for tag in page.select("a[href], link[href], img[src], script[src]"):
        address = tag["href"] if tag.has_attr("href") else tag["src"]
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target = target / "index.html"
        if not target.is_file():
            yield f"dead link {address}"
        elif tag.name != "a" or target.suffix != ".html":
            continue
        elif unquote(parts.fragment) not in anchors(target):
            yield f"dead anchor {address}"


def wordless(page):
    for tag in page.find_all("img"):
        figure, words = tag.find_parent("figure"), tag.get("alt", "").strip()
        if not (figure and figure.find("figcaption")) and FILE_NAME.sub("", words) == "":
            yield f"picture without words: {tag.get('src')}"


def unrendered(page):
    for text in (page.find("article") or page).find_all(string=LEFTOVER):
        if not text.find_parent(["pre", "code", "script", "style"]):
            yield from (f"unrendered: {found.group()}" for found in LEFTOVER.finditer(text))


if __name__ == "__main__":
    problems = list(check(*sys.argv[1:]))
    print("\n".join(problems or ["no remote files, dead links or leftovers"]))
    sys.exit(bool(problems))
