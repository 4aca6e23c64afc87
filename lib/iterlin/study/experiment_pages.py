"""The page of an experiment: where it is, and the parameters that it runs with at a tier."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from iterlin.study.provenance import project_root

# A code cell of a page in MyST Markdown: options as ":name: value" lines or between two "---".
CELL = re.compile(
    r"^```\{code-cell\}.*\n(?P<options>(?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)\n*(?P<code>(?:.*\n)*?)```$",
    re.MULTILINE,
)


def path_of(experiment: str) -> Path:
    """The file of the experiment's page. Raises ValueError if the book has no such page."""
    found = sorted((project_root() / "book").rglob(f"{experiment}.md"))
    if not found:
        raise ValueError(f"the book has no page {experiment!r}")
    return found[0]


def name_of(page: Path) -> str:
    """The page's name in the table of contents, such as ``experiments/xor``."""
    return page.relative_to(project_root() / "book").with_suffix("").as_posix()


def defaults(page: Path) -> dict:
    """Name and default value of each parameter in the cell tagged ``parameters``.

    Raises ValueError if the cell fails when it is run by itself.
    """
    for cell in CELL.finditer(page.read_text("utf8")):
        if "parameters" in re.findall(r"\w+", cell["options"]):
            found: dict = {}
            try:
                exec(compile(cell["code"], str(page), "exec"), found)
            except Exception as error:
                raise ValueError(f"{page}: the parameters cell fails: {error}") from error
            assigned = (n for n in ast.walk(ast.parse(cell["code"])) if isinstance(n, ast.Name))
            names = dict.fromkeys(n.id for n in assigned if isinstance(n.ctx, ast.Store))
            return {name: found[name] for name in names}
    return {}


def parameters(experiment: str, tier: str) -> dict:
    """The values with which the experiment's page runs at a tier.

    Those of the tier's file, of the file that it is ``like`` (a page beside it), and the defaults.
    Raises ValueError if the book has no such page or its parameters cell fails.
    """
    page = path_of(experiment)
    return plain(defaults(page) | _of_tier(page, tier) | {"tier": tier})


def plain(values: Mapping) -> dict:
    """Parameters as JSON gives them back: lists in the place of tuples, keys sorted."""
    return json.loads(json.dumps(dict(values), sort_keys=True))


def _of_tier(page: Path, tier: str) -> dict:
    file = page.with_suffix(f".{tier}.yml")
    values = (yaml.safe_load(file.read_text("utf8")) or {}) if file.is_file() else {}
    like = values.pop("like", None)
    return values if like is None else _of_tier(page.with_stem(like), tier) | values
