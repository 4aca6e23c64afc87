"""Results on disk, what they came from, and whether they are reproduced today."""
