"""KubeProxyConfiguration and flags to one Config; every error is listed, each with its field path."""

from proxyd.config.effective import Config, load, resolve
from proxyd.config.flags import add_flags
from proxyd.config.parse import Parsed, parse_file
from proxyd.config.schema import ConfigError, Conntrack, Document, Problem

__all__ = [
    "Config",
    "ConfigError",
    "Conntrack",
    "Document",
    "Parsed",
    "Problem",
    "add_flags",
    "load",
    "parse_file",
    "resolve",
]
