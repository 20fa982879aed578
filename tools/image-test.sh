#!/usr/bin/env bash
# Tries the image that tools/image.sh has built, as root: what is in it, its size, and proxyd in it with real connections, in
# both modes, with the rights that deploy/daemonset.yaml gives it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/root
tools/image.sh root "$root"

fail() { echo "image-test: $*" >&2; exit 1; }
[ -L "$root/usr/local/bin/kube-proxy" ] || fail "no kube-proxy"
for program in nft iptables-nft-restore iptables-legacy-restore ip6tables-legacy-save conntrack; do
  [ -x "$root/usr/sbin/$program" ] || fail "no $program"
done
for program in gcc cc ld pip pip3; do
  [ ! -e "$root/usr/bin/$program" ] && [ ! -e "$root/opt/proxyd/bin/$program" ] || fail "$program is not needed"
done
[ -z "$(find "$root/var/lib/apt/lists" "$root/var/cache/apt" -type f)" ] || fail "packages' lists are not needed"
added=$(du -sm "$root/opt/proxyd" | cut -f 1)
echo "image-test: $added MB beside Debian's packages"
[ "$added" -le 100 ] || fail "more than 100 MB"

export PROXYD_IMAGE_ROOT=$root PROXYD_PROGRAM=$PWD/tools/in-image.sh
.venv/bin/python -m pytest -q tests/cluster/in_image.py \
  tests/cluster/test_daemon.py -k "in_image or changed_file or asked_to_end_it_exits_0 or version_and_help or all_that_is_wrong" "$@"
