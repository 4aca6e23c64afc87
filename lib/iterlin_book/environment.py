"""Print environment.yml, which repeats the lock's versions for users of conda (`make lock`)."""

import re
import sys
from pathlib import Path

_PIN = re.compile(r"^[A-Za-z0-9][^\s\\]*==[^\\\n]*", re.MULTILINE)
_HEAD = """\
# The versions of requirements.lock for users of conda. Made by `make lock`; then
#
#   conda env create -f environment.yml
#   conda activate iterlin
#   python -m iterlin_book.build book
#
name: iterlin
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - pip:
"""


def pins(lock_text):
    """The lock's requirements without hashes, markers included."""
    return [line.strip() for line in _PIN.findall(lock_text)]


def environment(lock_text):
    """The text of environment.yml for a lock."""
    return _HEAD + "".join(f'      - "{pin}"\n' for pin in pins(lock_text)) + '      - "-e ."\n'


if __name__ == "__main__":
    sys.stdout.write(environment(Path("requirements.lock").read_text("utf8")))
