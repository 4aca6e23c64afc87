"""Ask other sites for what the book refers to: ``python -m iterlin_book.links``, or `make links`.

The links of the built pages and the places of the data (`iterlin.study.downloads`); one line for
each that is gone. It needs the network, and what it finds changes by itself: `make test` does not.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from bs4 import BeautifulSoup
from iterlin.study import downloads
from requests.adapters import HTTPAdapter, Retry

TIMEOUT = 30
AGAIN = Retry(2, backoff_factor=1, status_forcelist=(429, 500, 502, 503, 504), allowed_methods=None)
HEADERS = {"User-Agent": "Mozilla/5.0 (links of a book)"}
# It answers by sending on to a publisher, many of whom refuse whatever is no browser.
SENDS_ON = ("https://doi.org/",)


def addresses(folder):
    """Where each address of another site stands: pages of a built book, or the data's registry.

    The buttons that lead to the repository are made by rule, the same on each page: left out.
    """
    found = {}
    for path in sorted(Path(folder).rglob("*.html")):
        page = BeautifulSoup(path.read_text("utf8"), "html.parser")
        for bar in page.select(".article-header-buttons"):
            bar.decompose()
        for link in page.find_all("a", href=True):
            address = link["href"].partition("#")[0]
            if address.startswith(("http://", "https://")):
                found.setdefault(address, set()).add(str(path.relative_to(folder)))
    for data in downloads.registry().values():
        for file in data["files"]:
            found.setdefault(file.url, set()).add("registry.yml")
    return found


def problem(address):
    """What is wrong with an address, in words; nothing where it is answered."""
    with requests.Session() as session:
        session.mount("http", HTTPAdapter(max_retries=AGAIN))
        options = {"timeout": TIMEOUT, "headers": HEADERS, "stream": True}
        try:
            if address.startswith(SENDS_ON):
                answer = session.head(address, allow_redirects=False, **options)
            else:
                answer = session.get(address, **options)
        except requests.RequestException as error:
            return type(error).__name__
        return "" if answer.ok else f"{answer.status_code} {answer.reason}"


def check(found):
    """A line for each address that nothing answers at; `found` is what `addresses` returns."""
    with ThreadPoolExecutor(8) as several:
        for address, wrong in zip(found, several.map(problem, found), strict=True):
            if wrong:
                yield f"{', '.join(sorted(found[address]))}: {address}: {wrong}"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.links", description=__doc__)
    parser.add_argument("folder", nargs="?", default="_build/html", type=Path)
    folder = parser.parse_args(arguments).folder
    if not (folder / "index.html").is_file():
        print(f"{folder}: no book there: make book first", file=sys.stderr)
        return 2
    found = addresses(folder)
    problems = list(check(found))
    print("\n".join(problems or [f"{folder}: all {len(found)} links to other sites are answered"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
