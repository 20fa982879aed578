"""Configuration: file, flags, and what becomes of both."""
