"""Benchmarks: ratios and growth within one run, never absolute promises. Run by ``make bench``."""
