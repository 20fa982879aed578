#!/usr/bin/env bash
# Runs the proxyd of an unpacked image (tools/image.sh root FOLDER) as the container of deploy/daemonset.yaml: its root
# and /proc/sys read-only, NET_ADMIN and NET_RAW only ($CAPABILITIES: others). In the network namespace of the caller, as
# root, and as this very process; /tmp is the caller's.
#
#   PROXYD_IMAGE_ROOT=FOLDER tools/in-image.sh ARG ...
set -euo pipefail
root=${PROXYD_IMAGE_ROOT:?the folder of an unpacked image}
# shellcheck disable=SC2016 # expanded inside
exec unshare --mount sh -euc '
root=$1 capabilities=$2
shift 2
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
for each in dev sys tmp; do mount --rbind "/$each" "$root/$each"; done
mount -t tmpfs tmpfs "$root/run"  # for the lock of iptables-legacy
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --no-new-privs --inh-caps=-all --bounding-set="$capabilities" /usr/local/bin/proxyd "$@"
' in-image "$root" "${CAPABILITIES:--all,+net_admin,+net_raw}" "$@"
