"""Find an experiment's page and its parameters at a tier."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from iterlin_study.records import strict_yaml
from iterlin_study.records.provenance import project_root

TIERS = ("quick", "laptop", "gpu", "paper")
# A code cell of a page in MyST Markdown: options as ":name: value" lines or between two "---".
CELL = re.compile(
    r"^```\{code-cell\}.*\n(?P<options>(?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)\n*(?P<code>(?:.*\n)*?)```$",
    re.MULTILINE,
)
# The tag among a cell's options, in one line or in a list of several; not in a caption.
TAGGED = re.compile(r"^:?tags:(?:.*|(?:\n- .*)*\n- )\bparameters\b", re.MULTILINE)


def path_of(experiment: str) -> Path:
    """Return the file of the experiment's page. Raises ValueError if the book has no such page."""
    found = sorted((project_root() / "book").rglob(f"{experiment}.md"))
    if not found:
        raise ValueError(f"the book has no page {experiment!r}")
    return found[0]


def name_of(page: Path) -> str:
    """Return the page's name in the table of contents, such as ``experiments/xor``."""
    return page.relative_to(project_root() / "book").with_suffix("").as_posix()


def defaults(page: Path) -> dict:
    """Return the default value of each parameter in the cell tagged ``parameters``, by name.

    Raises ValueError if the cell fails when it is run by itself.
    """
    for cell in CELL.finditer(page.read_text("utf8")):
        if TAGGED.search(cell["options"]):
            found: dict = {}
            try:
                exec(compile(cell["code"], str(page), "exec"), found)
            except Exception as error:
                raise ValueError(f"{page}: the parameters cell fails: {error}") from error
            return {name: value for name, value in found.items() if not name.startswith("__")}
    return {}


def parameters(experiment: str, tier: str) -> dict:
    """Return the parameters of the experiment's page at a tier.

    Those of the tier's file, of the file that it is ``like`` (a page beside it), and the defaults.
    Raises ValueError if the book has no such page, its parameters cell fails or the tier's file is
    not one.
    """
    page = path_of(experiment)
    file = page.with_suffix(f".{tier}.yml")
    return plain(defaults(page) | (tier_values(file) if file.is_file() else {}) | {"tier": tier})


def plain(values: Mapping) -> dict:
    """Return parameters as JSON gives them back: lists in place of tuples, keys sorted."""
    return json.loads(json.dumps(dict(values), sort_keys=True))


def tier_values(file: Path, *likes: Path) -> dict:
    """Return the values of a tier's file over those of the file that it is ``like``.

    That file is the one of the same tier of another page in the same folder. likes: the files that
    are like this one. Raises ValueError, naming the file, if one of them cannot be read, is no
    mapping or is like itself.
    """
    values = strict_yaml.load(file) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{file}: expected lines of the form 'name: value'")
    if (like := values.pop("like", None)) is None:
        return values
    other = file.parent / f"{like}.{file.name.partition('.')[2]}"
    if other.parent != file.parent or not other.is_file():
        raise ValueError(f"{file}: it is like {other}, which is no file beside it")
    if other in (file, *likes):
        raise ValueError(f"{file}: it is like {other}, which is like it in turn")
    return tier_values(other, file, *likes) | values
