"""The empirical kernel layer by layer: where parameters enter, and what each layer adds."""
