"""Read YAML without the guesses of YAML 1.1."""

import re

import yaml

# What YAML 1.1 reads in base 8 or 60, and what it leaves as text although it is a number.
_GUESSED = re.compile(r"[-+]?0\d|.*:")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def load(text: str) -> object:
    """Return what a YAML text holds; 1e-5 is a number.

    Raises ValueError, in one line, for what is no YAML, a name that is given twice, and numbers
    such as 010 and 1:30.
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

    def construct_number(self, node):
        if _GUESSED.match(node.value):
            raise ValueError(f"{node.value}: write it as a decimal number, or in quotes")
        whole = node.tag.endswith("int")
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)
