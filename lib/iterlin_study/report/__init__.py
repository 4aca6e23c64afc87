"""Claims and their verdicts, tables, figures, and what every page does."""
