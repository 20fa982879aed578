#!/usr/bin/env bash
# Where the browser of the tests is (Chromium without a window), and fetching it where it is not.
#
#   tools/chromium.sh            fetches it unless it is there; where it cannot, says so, and is content
#   tools/chromium.sh --where    prints its path; says what is missing and fails where there is none
#
# An installed one will do. Else Debian's package, with all of its libraries that are not installed, is unpacked into the
# user's cache folder (about 300 MB): a browser and its fonts are nothing that a test should install on a machine.
set -euo pipefail
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/proxyd/chromium
packages=(chromium-headless-shell fonts-dejavu-core)

where() {
  local program
  for program in "$cache/chromium" /usr/bin/chromium-headless-shell /usr/bin/chromium; do
    if [ -x "$program" ]; then echo "$program" && return; fi
  done
  return 1
}

fetch() {
  mkdir -p "$(dirname "$cache")"
  exec 9>"$cache.lock"
  flock 9
  ! where >/dev/null || return 0 # by somebody else, while we waited
  work=$(mktemp -d "$cache.XXXXXX") # not local: the trap outlives this function
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/debs/partial" "$work/root"
  download || { apt-get update -qq && download; } || return 1
  local package
  for package in "$work"/debs/*.deb; do dpkg-deb -x "$package" "$work/root" || return 1; done
  rm -rf "$work/debs"
  program >"$work/chromium"
  chmod 755 "$work" "$work/chromium"
  [ -x "$work/root/usr/lib/chromium/chromium-headless-shell" ] || return 1
  rm -rf "$cache"
  mv -T "$work" "$cache"
}

# Only works out and downloads what is missing; nothing is installed.
download() {
  apt-get -qq -y -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Dir::Cache::archives="$work/debs" \
    --no-install-recommends --download-only install "${packages[@]}" >/dev/null 2>"$work/error"
}

program() {
  cat <<'SCRIPT'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for folder in "$root"/usr/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu/pulseaudio; do
  LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
# Fonts, where the system has none.
export LD_LIBRARY_PATH XDG_DATA_HOME="$root/usr/share"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$root/etc/fonts/fonts.conf"
exec "$root/usr/lib/chromium/chromium-headless-shell" "$@"
SCRIPT
}

case "${1:-}" in
  --where)
    where || {
      echo "no Chromium: none is installed, none has been fetched (make chromium, on Debian)" >&2
      exit 1
    }
    ;;
  "")
    if ! where >/dev/null && ! fetch; then
      echo "chromium: Debian's package cannot be had: tests that need it will be skipped" >&2
      [ ! -s "${work:-}/error" ] || cat "$work/error" >&2
    fi
    ;;
  *)
    echo "usage: tools/chromium.sh [--where]" >&2
    exit 2
    ;;
esac
