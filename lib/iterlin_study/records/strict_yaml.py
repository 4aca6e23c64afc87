"""Read YAML strictly: no name is given twice, and 1e-5 is a number."""

import re
from pathlib import Path

import yaml

# YAML 1.1 leaves 1e-5 as text: it wants a point in it.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def load(path: Path) -> object:
    """Return what a YAML file holds.

    Raises ValueError, in one line that names the file, if it cannot be read, is no YAML or gives a
    name twice.
    """
    try:
        return yaml.load(path.read_text("utf8"), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: cannot be read as YAML: {reason}") from None


class _Loader(yaml.CSafeLoader):
    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if (name := str(key.value)) in seen:
                raise ValueError(f"'{name}' is given twice, in line {key.start_mark.line + 1}")
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
