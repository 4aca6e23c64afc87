"""Networks as pure functions of (params, x): an MLP, adapters of Flax and Equinox, convolution."""
