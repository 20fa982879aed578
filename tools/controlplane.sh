#!/usr/bin/env bash
# Where the control plane of the tests is (etcd, kube-apiserver, kube-controller-manager, and kube-proxy to compare with),
# and building it where it is not.
#
#   tools/controlplane.sh            builds it unless it is there; without Go says so, and is content
#   tools/controlplane.sh --where    prints its folder; says what is missing and fails where there is none; waits for
#                                    whoever is building it
#
# $KUBEBUILDER_ASSETS is taken where it has all four. Else they are built from the versions that tests/controlplane/go.mod
# and tests/controlplane/etcd/go.mod pin, once for each state of these files, into the user's cache folder. Building takes
# some minutes, with what other processes leave of the processors; what is built is about 320 MB. Without Go, a
# $KUBEBUILDER_ASSETS with the first two will do: tests that need one of the others are skipped.
set -euo pipefail
modules=$(cd "$(dirname "$0")/../tests/controlplane" && pwd)
programs=(etcd kube-apiserver kube-controller-manager kube-proxy)
recipe=1 # to be raised when the way of building changes
pins=("$modules"/{,etcd/}go.{mod,sum})
version=$({ echo "$recipe"; cat "${pins[@]}"; } | sha256sum | cut -c 1-12)
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/proxyd/controlplane-$version

# Whether a folder ($1) has all of these programs.
has() {
  local folder=$1 program
  shift
  [ -n "$folder" ] || return 1
  for program in "$@"; do [ -x "$folder/$program" ] || return 1; done
}

complete() {
  local folder
  for folder in "${KUBEBUILDER_ASSETS:-}" "$cache"; do
    if has "$folder" "${programs[@]}"; then
      echo "$folder"
      return
    fi
  done
  return 1
}

at_least_a_server() {
  has "${KUBEBUILDER_ASSETS:-}" etcd kube-apiserver && echo "$KUBEBUILDER_ASSETS"
}

build() {
  local kubernetes major minor stamp=k8s.io/component-base/version
  mkdir -p "$(dirname "$cache")"
  exec 9>"$cache.lock"
  flock 9
  ! has "$cache" "${programs[@]}" || return 0 # by somebody else, while we waited
  work=$(mktemp -d "$cache.XXXXXX") # not local: the trap outlives this function
  trap 'rm -rf "$work"' EXIT
  export CGO_ENABLED=0 GOWORK=off
  local -a options=(-mod=readonly -buildvcs=false -trimpath)
  chrt --idle --pid 0 $$ || true
  cd "$modules"
  kubernetes=$(go list -mod=readonly -m -f '{{.Version}}' k8s.io/kubernetes)
  IFS=. read -r major minor _ <<<"${kubernetes#v}"
  echo "controlplane: building kubernetes $kubernetes and etcd into $cache, some minutes" >&2
  go build "${options[@]}" -o "$work/" \
    -ldflags "-s -w -X $stamp.gitVersion=$kubernetes -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor" tool
  cd etcd
  go build "${options[@]}" -ldflags "-s -w" -o "$work/etcd" go.etcd.io/etcd/server/v3
  has "$work" "${programs[@]}"
  chmod 755 "$work"
  rm -rf "$cache"
  mv -T "$work" "$cache"
}

wait_for_builder() {
  [ ! -e "$cache.lock" ] || flock "$cache.lock" true
}

case "${1:-}" in
  --where)
    complete >/dev/null || wait_for_builder
    complete || at_least_a_server || {
      echo "no control plane: none in KUBEBUILDER_ASSETS (etcd, kube-apiserver), none built (make controlplane, with Go)" >&2
      exit 1
    }
    ;;
  "")
    if complete >/dev/null; then
      exit
    elif command -v go >/dev/null; then
      build
    elif at_least_a_server >/dev/null; then
      echo "controlplane: no Go here, not all programs in KUBEBUILDER_ASSETS: tests that need more will be skipped" >&2
    else
      echo "controlplane: no Go here, nothing in KUBEBUILDER_ASSETS: tests that need a control plane will be skipped" >&2
    fi
    ;;
  *)
    echo "usage: tools/controlplane.sh [--where]" >&2
    exit 2
    ;;
esac
