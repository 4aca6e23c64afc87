"""How fast the library is, beside its peers: `make bench`. Nothing in the tests depends on it."""
