"""Flags of older kube-proxies that old manifests still have: of its log, of libraries it was built with, of Windows.

They are accepted with a warning, and their values are not looked at. Source: kube-proxy's reference pages, 1.12 to 1.25.
"""

from __future__ import annotations

# These need no value.
LEFTOVER_SWITCHES = (
    "--add-dir-header",
    "--alsologtostderr",
    "--cleanup-ipvs",
    "--docker-only",
    "--docker-tls",
    "--enable-dsr",
    "--enable-load-reader",
    "--forward-healthcheck-vip",
    "--log-cadvisor-usage",
    "--logtostderr",
    "--one-output",
    "--skip-headers",
    "--skip-log-headers",
    "--storage-driver-secure",
    "--windows-service",
)

# These take one.
LEFTOVER_VALUES = (
    "--application-metrics-count-limit",
    "--azure-container-registry-config",
    "--boot-id-file",
    "--cloud-provider-gce-l7lb-src-cidrs",
    "--cloud-provider-gce-lb-src-cidrs",
    "--conntrack-max",
    "--container-hints",
    "--containerd",
    "--containerd-namespace",
    "--default-not-ready-toleration-seconds",
    "--default-unreachable-toleration-seconds",
    "--docker",
    "--docker-env-metadata-whitelist",
    "--docker-root",
    "--docker-tls-ca",
    "--docker-tls-cert",
    "--docker-tls-key",
    "--event-storage-age-limit",
    "--event-storage-event-limit",
    "--global-housekeeping-interval",
    "--housekeeping-interval",
    "--log-backtrace-at",
    "--log-dir",
    "--log-file",
    "--log-file-max-size",
    "--machine-id-file",
    "--network-name",
    "--resource-container",
    "--root-hnsendpoint-name",
    "--source-vip",
    "--stderrthreshold",
    "--storage-driver-buffer-duration",
    "--storage-driver-db",
    "--storage-driver-host",
    "--storage-driver-password",
    "--storage-driver-table",
    "--storage-driver-user",
    "--udp-timeout",
)
