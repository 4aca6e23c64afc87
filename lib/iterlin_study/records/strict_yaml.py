"""Read YAML strictly: no name is given twice, and 1e-5 is a number."""

import re

import yaml

# YAML 1.1 leaves 1e-5 as text: it wants a point in it.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def load(text: str) -> object:
    """Return what a YAML text holds.

    Raises ValueError, in one line, for what is no YAML and for a name that is given twice.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.CSafeLoader):
    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if (name := str(key.value)) in seen:
                raise ValueError(f"'{name}' is given twice, in line {key.start_mark.line + 1}")
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
