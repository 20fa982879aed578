"""What a valid configuration may still not be started with."""

from __future__ import annotations

import pytest

from proxyd.config import Config, resolve
from proxyd.errors import UserError
from proxyd.model import FAMILIES, Family
from proxyd.startup import check_host
from tests.config.support import flags, parse


def config(body: str) -> Config:
    return resolve(parse(body), flags("--config=x"))


def test_a_range_of_the_family_that_the_host_has_not_is_refused_on_a_host_of_one_family_only() -> None:
    only_ipv6 = config("clusterCIDR: fd00::/48\n")
    check_host(only_ipv6, FAMILIES)
    with pytest.raises(UserError, match=r"^clusterCIDR: only IPv6"):
        check_host(only_ipv6, (Family.IPV4,))


def test_what_is_merely_odd_is_not_refused() -> None:
    check_host(config("healthzBindAddress: '[::]:10256'\n"), (Family.IPV4,))
