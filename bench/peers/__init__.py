"""One module a peer, each run in that peer's own environment by `bench.driver`."""
