"""What `bench.peers.iterlin` runs: one module a subject."""
