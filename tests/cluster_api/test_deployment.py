"""A real API server takes what deploy/ ships, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.api import Api, ApiRefusedError
from tests.controlplane.plane import Plane
from tests.deployment import CLEANUP, DAEMON_SET, METRICS_SERVICE, objects, one

FILES = (DAEMON_SET, CLEANUP, METRICS_SERVICE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_object_is_taken_with_unknown_fields_forbidden(api: Api, file: Path) -> None:
    for manifest in objects(file):
        # As `kubectl apply --server-side` does, and kubectl's default of validation.
        api.apply(manifest, fieldValidation="Strict", dryRun="All")
        api.apply(manifest, fieldValidation="Strict")
    if file != DAEMON_SET:  # on which the other tests rely
        api.delete_all(objects(file))


def test_a_field_that_there_is_not_would_be_found(api: Api) -> None:
    wrong = one("DaemonSet")
    wrong["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(ApiRefusedError) as caught:
        api.apply(wrong, fieldValidation="Strict", dryRun="All")
    assert "hostNetworks" in str(caught.value)


def test_the_account_that_pods_use_is_the_one_with_the_role(plane: Plane) -> None:
    account = one("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    slices = "/apis/discovery.k8s.io/v1/endpointslices"
    assert plane.somebody(plane.token(account)).get(slices)["kind"] == "EndpointSliceList"
