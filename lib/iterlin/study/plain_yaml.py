"""YAML of others, read in bounded time: parameter files and the ledger of claims."""

from collections.abc import Hashable

import yaml

# Far above what a file of ours holds; reading that much takes a fraction of a second.
MOST_CHARACTERS, MOST_NODES, DEEPEST = 500_000, 10_000, 30


def load(text: str) -> object:
    """What a YAML text holds: plain values in lists and mappings.

    Raises ValueError, in one line, for what is no YAML, a name that is given twice (plain YAML
    keeps the last one silently), an alias, by which few lines can stand for billions of values, and
    for more, deeper or longer values than anybody would write.
    """
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"more than {MOST_CHARACTERS} characters")
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream):
        super().__init__(stream)
        self.nodes = self.depth = 0

    def compose_node(self, parent, index):
        self.nodes += 1
        self.depth += 1
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"the alias *{self.peek_event().anchor}: write out what it stands for")
        if self.nodes > MOST_NODES or self.depth > DEEPEST:
            raise ValueError(f"over {MOST_NODES} values, or nested over {DEEPEST} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"'{name}' is given twice", problem_mark=node.start_mark
                )
            seen.update([name] if isinstance(name, Hashable) else ())
        return super().construct_mapping(node, deep)
