"""The public repository of the book, where there is one: `repository_url` in `_config.yml`.

It is set there and nowhere else: the buttons of every page, the first cell of the notebooks and
the check of the built book read it here. Unset, the book knows of no other site.
"""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from iterlin_book.pages import BookError, one_line

CONFIG = "_config.yml"
# What the hosted build publishes, notebooks with their outputs among it (.github/workflows).
PUBLISHED = "gh-pages"
COLAB, BINDER = "https://colab.research.google.com", "https://mybinder.org"
_URL = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)/?")


class Repository(NamedTuple):
    """A repository on GitHub, and the addresses that belong to a page of the book."""

    owner: str
    name: str
    branch: str

    @property
    def url(self):
        return f"https://github.com/{self.owner}/{self.name}"

    def issue(self, page):
        return f"{self.url}/issues/new?title=Page%20{page}"

    def edit(self, page):
        return f"{self.url}/edit/{self.branch}/book/{page}.md"

    def colab(self, page):
        path = f"{self.owner}/{self.name}/blob/{PUBLISHED}/_sources/{page}.ipynb"
        return f"{COLAB}/github/{path}"

    def binder(self, page):
        place = f"{BINDER}/v2/gh/{self.owner}/{self.name}/{PUBLISHED}"
        return f"{place}?urlpath=lab/tree/_sources/{page}.ipynb"

    def leads_to(self, address):
        """Whether an address is one of those above, of any page."""
        of_pages = (self.colab(""), self.binder(""))
        starts = (f"{self.url}/", *(start.removesuffix(".ipynb") for start in of_pages))
        return address == self.url or address.startswith(starts)


def read(root):
    """The project's repository, or None where `_config.yml` names none.

    Raises BookError for what is not the address of a repository on GitHub.
    """
    path = Path(root) / CONFIG
    if not path.is_file():
        return None
    try:
        settings = yaml.safe_load(path.read_text("utf8")) or {}
    except yaml.YAMLError as error:
        raise BookError(f"{path}: not valid YAML: {one_line(error)}") from None
    settings = (settings.get("sphinx") or {}).get("config") or {}
    return parse(settings.get("repository_url"), settings.get("repository_branch"))


def parse(url, branch=None):
    """The repository at an address; None for an empty one. Raises as `read` does."""
    if not url:
        return None
    found = _URL.fullmatch(url)
    if found is None:
        raise BookError(
            f"{CONFIG}: repository_url '{url}' is not of the form https://github.com/OWNER/NAME"
        )
    return Repository(*found.groups(), branch or "main")
