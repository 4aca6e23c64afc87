"""Engines that train a linearisation for a whole period without taking its steps (full batch)."""
