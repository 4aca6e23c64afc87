"""Check the built book as a reader without a network meets it: ``python -m iterlin_book.offline``.

Nothing may be loaded from elsewhere, buttons lead to no other site than the project's repository
and what runs its notebooks, where `_config.yml` names one, every internal link and anchor must
exist, no markup may be left unrendered, and every picture needs words. One line for each problem.
"""

import argparse
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from iterlin_book import repository
from iterlin_book.pages import BookError

_LOADED = {  # element -> attributes whose target a browser fetches by itself
    "script": ["src"],
    "img": ["src", "srcset"],
    "iframe": ["src"],
    "embed": ["src"],
    "source": ["src", "srcset"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "object": ["data"],
}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
_REMOTE_CSS = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")
_REMOTE_SCRIPT = re.compile(r"""https?://[^'"\s]+\.(?:m?js|css|woff2?)\b""")
_LEFTOVER = re.compile(
    r"\{(?:cite|eq|numref|ref|doc|prf|term|math)\b[^}]*\}`?|\?\?|\[\?\]|\| (?:---|—) \|"
)
_FILE_NAME = re.compile(r"\S+\.(png|svg|jpe?g|gif)$")


def check(folder, home=None):
    """All problems of the pages and style sheets in a folder, as lines of text; `home` is the
    repository that buttons may lead to, a `repository.Repository`."""
    folder = Path(folder).resolve()
    found = sorted(folder.rglob("*.html"))
    # Themes keep templates of their own among the static files: no reader opens them.
    html = [path for path in found if "_static" not in path.relative_to(folder).parts]
    if not html:
        yield f"{folder}: no pages"
    for path in html:
        page = _parsed(path)
        name = path.relative_to(folder)
        for check_one in (_remote, _pictures, _leftovers):
            for problem in check_one(page):
                yield f"{name}: {problem}"
        for problem in [*_buttons(page, home), *_links(page, path, folder)]:
            yield f"{name}: {problem}"
    for path in sorted(folder.rglob("*.css")):
        for address in _REMOTE_CSS.findall(path.read_text("utf8", errors="replace")):
            yield f"{path.relative_to(folder)}: loads {address}"


@cache
def _parsed(path):
    return BeautifulSoup(path.read_text("utf8"), "html.parser")


@cache
def _anchors(path):
    page = _parsed(path)
    return {tag["id"] for tag in page.find_all(id=True)} | {
        tag["name"] for tag in page.find_all("a", attrs={"name": True})
    }


def _has(path, anchor):
    return not anchor or unquote(anchor) in _anchors(path)


def _is_remote(address):
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https")


def _remote(page):
    for tag in page.find_all(list(_LOADED)):
        for attribute in _LOADED[tag.name]:
            for address in re.split(r",\s+", tag.get(attribute, "")):
                if _is_remote(address.strip()):
                    yield f"<{tag.name}> loads {address.strip()}"
    for tag in page.find_all("link", href=True):
        if _LOADING_LINKS & {kind.lower() for kind in tag.get("rel", [])} and _is_remote(
            tag["href"]
        ):
            yield f"<link> loads {tag['href']}"
    styles = [tag.get_text() for tag in page.find_all("style")]
    styles += [tag["style"] for tag in page.find_all(style=True)]
    for address in _REMOTE_CSS.findall("\n".join(styles)):
        yield f"style loads {address}"
    for tag in page.find_all("script", src=False):
        for address in _REMOTE_SCRIPT.findall(tag.get_text()):
            yield f"script names {address}"


def _buttons(page, home):
    for tag in page.select(".article-header-buttons a[href]"):
        if _is_remote(tag["href"]) and not (home and home.leads_to(tag["href"])):
            yield f"button to {tag['href']}"


def _links(page, path, folder):
    targets = [(tag, "href") for tag in page.find_all("a", href=True)]
    targets += [(tag, "href") for tag in page.find_all("link", href=True)]
    targets += [(tag, "src") for tag in page.find_all(["img", "script"], src=True)]
    for tag, attribute in targets:
        address = urlsplit(tag[attribute])
        if address.scheme or address.netloc:
            continue
        target = (path.parent / unquote(address.path)).resolve() if address.path else path
        if target.is_dir():
            target = target / "index.html"
        if not (target.is_file() and target.is_relative_to(folder)):
            yield f"dead link {tag[attribute]}"
        elif tag.name == "a" and target.suffix == ".html" and not _has(target, address.fragment):
            yield f"dead anchor {tag[attribute]}"


def _pictures(page):
    for tag in page.find_all("img"):
        figure = tag.find_parent("figure")
        if figure is not None and figure.find("figcaption"):
            continue
        words = tag.get("alt", "").strip()
        if not words or _FILE_NAME.fullmatch(words):
            yield f"picture without words: {tag.get('src')}"


def _leftovers(page):
    main = page.find("article") or page.find("main") or page
    for text in main.find_all(string=_LEFTOVER):
        if not text.find_parent(["pre", "code", "script", "style"]):
            for leftover in _LEFTOVER.finditer(text):
                yield f"unrendered: {leftover.group()}"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.offline", description=__doc__)
    parser.add_argument("folder", nargs="?", default="_build/html", type=Path)
    parser.add_argument("--root", default=".", type=Path, help="where _config.yml is")
    options = parser.parse_args(arguments)
    try:
        problems = list(check(options.folder, repository.read(options.root)))
    except BookError as error:
        problems = [str(error)]
    print("\n".join(problems or [f"{options.folder}: no remote files, dead links or leftovers"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
