"""Toy problems and image data."""
