#!/usr/bin/env bash
# Where the browser of the tests is (Chromium without a window), and fetching it where it is not.
#
#   tools/chromium.sh            fetches it unless it is there; where it cannot, says so, and is content
#   tools/chromium.sh --where    prints its path; says what is missing and fails where there is none
#
# An installed one will do. Else Debian's package, with all of its libraries that are not installed, is unpacked into the
# user's cache folder (about 300 MB): a browser and its fonts are nothing that a test should install on a machine.
set -euo pipefail
# shellcheck source=tools/fetch.sh
. "$(dirname "$0")/fetch.sh"
name=chromium label=Chromium
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/proxyd/chromium
packages=(chromium-headless-shell fonts-dejavu-core)

where() {
  local program
  for program in "$cache/chromium" /usr/bin/chromium-headless-shell /usr/bin/chromium; do
    if [ -x "$program" ]; then echo "$program" && return; fi
  done
  return 1
}

# Only works out and downloads what is missing; nothing is installed.
download() {
  mkdir -p debs/partial
  apt-get -qq -y -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Dir::Cache::archives="$PWD/debs" \
    --no-install-recommends --download-only install "${packages[@]}" >/dev/null 2>error
}

unpack() {
  local package
  mkdir -p ready/unpacked
  for package in debs/*.deb; do dpkg-deb -x "$package" ready/unpacked || return 1; done
  [ -x ready/unpacked/usr/lib/chromium/chromium-headless-shell ] || return 1
  program >ready/chromium
  chmod 755 ready/chromium
}

program() {
  cat <<'SCRIPT'
#!/bin/sh
unpacked=$(dirname "$(readlink -f "$0")")/unpacked
for folder in "$unpacked"/usr/lib/*-linux-gnu "$unpacked"/usr/lib/*-linux-gnu/pulseaudio; do
  LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
# Fonts, where the system has none.
export LD_LIBRARY_PATH XDG_DATA_HOME="$unpacked/usr/share"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$unpacked/etc/fonts/fonts.conf"
exec "$unpacked/usr/lib/chromium/chromium-headless-shell" "$@"
SCRIPT
}

fetched "$@"
