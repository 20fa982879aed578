"""Configurations by flags, by a file, and by both."""

from __future__ import annotations

import msgspec
import pytest

from proxyd.config import CommandLine, Config, ConfigError, Document, Parsed, parse_file, read_arguments, resolve

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def flags(*argv: str) -> CommandLine:
    return read_arguments(argv)


def parse(body: str) -> Parsed:
    return parse_file(HEAD + body)


def plain(config: Config) -> Config:
    """Without the document behind it, which only repeats what the other fields come from."""
    return msgspec.structs.replace(config, document=Document())


def by_flags(*argv: str) -> Config:
    return plain(resolve(Parsed(Document()), flags(*argv)))


def by_file(body: str, *argv: str) -> Config:
    return plain(resolve(parse(body), flags("--config=x", *argv)))


def refused(parsed: Parsed, *argv: str) -> tuple[str, ...]:
    """The problems of a configuration that cannot be used."""
    with pytest.raises(ConfigError) as caught:
        resolve(parsed, flags(*argv))
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems
