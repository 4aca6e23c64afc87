"""Any period for the price of a few passes: full-batch linearisations without their steps."""
