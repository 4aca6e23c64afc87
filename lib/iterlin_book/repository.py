"""The public repository of the book, if there is one: `repository_url` in `_config.yml`.

The buttons of every page and the first cell of the notebooks lead there. Without it the book names
no other site.
"""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from iterlin_book.pages import BookError

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


def read(root):
    """The project's repository, or None if `_config.yml` names none.

    Raises BookError for an address that is not of a repository on GitHub.
    """
    settings = yaml.safe_load((Path(root) / CONFIG).read_text("utf8"))["sphinx"]["config"]
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
