"""KubeProxyConfiguration and flags to one Config; every error is listed, each with its field path."""

from proxyd.config.apply import options
from proxyd.config.commandline import CommandLine
from proxyd.config.effective import Config, as_file, differences, load, resolve
from proxyd.config.flags import read_arguments
from proxyd.config.parse import Parsed, parse_file
from proxyd.config.schema import ConfigError, Conntrack, Document, Problem
from proxyd.config.write import as_mapping

__all__ = [
    "CommandLine",
    "Config",
    "ConfigError",
    "Conntrack",
    "Document",
    "Parsed",
    "Problem",
    "as_file",
    "as_mapping",
    "differences",
    "load",
    "options",
    "parse_file",
    "read_arguments",
    "resolve",
]
