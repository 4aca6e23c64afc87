"""Networks as pure functions: init(key) -> params, apply(params, x) -> outputs."""
