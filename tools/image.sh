#!/usr/bin/env bash
# The image, with whichever of docker, podman and buildah works here ($ENGINE chooses).
#
#   tools/image.sh build [ARG ...]   builds $IMAGE (localhost/proxyd:VERSION); further arguments are for the engine's build
#   tools/image.sh save FILE         writes it as an archive, for `ctr -n k8s.io images import FILE` on a node
#   tools/image.sh root FOLDER       unpacks its root file system into a new folder
#
# $BASE is another Debian image to build on. The times of files are those of the last commit, or $SOURCE_DATE_EPOCH.
#
# Without an engine's daemon and without a registry (as root, on Debian): buildah, and a base made by debootstrap.
#   export ENGINE=buildah BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
#   debootstrap --variant=minbase trixie base
#   c=$(buildah from scratch); buildah add "$c" base /; buildah commit "$c" docker.io/library/debian:trixie-slim
#   tools/image.sh build --pull-never
# Where pip needs the machine's own certificates or mirror, mount its configuration: build --volume /etc/pip.conf:/etc/pip.conf:ro
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' proxyd/__init__.py)
image=${IMAGE:-localhost/proxyd:$version}

engine() {
  local each
  for each in ${ENGINE:-docker podman buildah}; do
    # docker may be there without its daemon.
    "$each" info >/dev/null 2>&1 && echo "$each" && return
  done
  echo "image: none of docker, podman and buildah works here" >&2
  return 1
}

build() {
  local epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
  local -a options=(--tag "$image" --build-arg VERSION="$version"
    --build-arg REVISION="${REVISION:-$(git rev-parse HEAD)}"
    --build-arg CREATED="$(date --utc --date="@$epoch" +%Y-%m-%dT%H:%M:%SZ)")
  [ -z "${BASE:-}" ] || options+=(--build-arg BASE="$BASE")
  case $engine in
    docker) SOURCE_DATE_EPOCH=$epoch docker build "${options[@]}" "$@" . ;;
    *) "$engine" build --timestamp "$epoch" "${options[@]}" "$@" . ;;
  esac
  echo "image: $image"
}

save() {
  case $engine in
    buildah) buildah push --quiet "$image" "oci-archive:$1:$image" ;;
    *) "$engine" save --output "$1" "$image" ;;
  esac
}

root() {
  mkdir "$1"
  local container
  if [ "$engine" = buildah ]; then
    container=$(buildah from --pull-never "$image")
    cp -a "$(buildah mount "$container")/." "$1"
    buildah rm "$container" >/dev/null
  else
    container=$("$engine" create "$image")
    "$engine" export "$container" | tar -x -C "$1"
    "$engine" rm "$container" >/dev/null
  fi
}

case "${1:-}:$#" in
  build:*) engine=$(engine); build "${@:2}" ;;
  save:2 | root:2) engine=$(engine); "$1" "$2" ;;
  *)
    echo "usage: tools/image.sh build [ARG ...] | save FILE | root FOLDER" >&2
    exit 2
    ;;
esac
