"""The book's dial: sliders over the period and the damping, and what is on record at each stop."""
