"""The page that turns the dial."""
