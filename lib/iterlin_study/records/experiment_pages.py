"""Find an experiment's page and its parameters at a tier."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

from iterlin_study.records import strict_yaml
from iterlin_study.records.provenance import project_root

# A code cell of a page in MyST Markdown: options as ":name: value" lines or between two "---".
CELL = re.compile(
    r"^```\{code-cell\}.*\n(?P<options>(?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)\n*(?P<code>(?:.*\n)*?)```$",
    re.MULTILINE,
)


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
        if "parameters" in re.findall(r"\w+", cell["options"]):
            found: dict = {}
            try:
                exec(compile(cell["code"], str(page), "exec"), found)
            except Exception as error:
                raise ValueError(f"{page}: the parameters cell fails: {error}") from error
            assigned = (n for n in ast.walk(ast.parse(cell["code"])) if isinstance(n, ast.Name))
            names = dict.fromkeys(n.id for n in assigned if isinstance(n.ctx, ast.Store))
            # The variables of a comprehension are not among what the cell defines.
            return {name: found[name] for name in names if name in found}
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


def tier_values(file: Path, readers: tuple[Path, ...] = ()) -> dict:
    """The values of a tier's file over those of the file that it is ``like``: the one of the same
    tier of another page in its folder. Raises ValueError, naming the file, for what is no such."""
    try:
        values = strict_yaml.load(file.read_text("utf8")) or {}
    except FileNotFoundError:
        raise ValueError(f"{readers[-1]}: there is no {file} for it to be like") from None
    except ValueError as error:  # that it is not UTF-8, too
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file}: expected lines of the form 'name: value'")
    if (like := values.pop("like", None)) is None:
        return values
    if not re.fullmatch(r"\w+", str(like)):
        raise ValueError(f"{file}: 'like' must be the name of a page beside it, not {like!r:.60}")
    other = file.with_name(f"{like}.{file.name.partition('.')[2]}")
    if other in (file, *readers):
        raise ValueError(f"{file}: it is like itself, by way of '{like}'")
    return tier_values(other, (*readers, file)) | values
