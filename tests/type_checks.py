"""The run-time type checker of the tests: beartype, to which a whole number is a real one too."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
