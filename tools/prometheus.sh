#!/usr/bin/env bash
# Where the Prometheus of the tests is (prometheus, promtool), and fetching it where it is not.
#
#   tools/prometheus.sh            fetches it unless it is there; where it cannot, says so, and is content
#   tools/prometheus.sh --where    prints its folder; says what is missing and fails where there is none
#
# An installed one will do. Else Debian's package is unpacked into the user's cache folder (about 95 MB), not installed: its
# service would start, now or at the next boot, and nobody has asked for a monitoring system on this machine.
set -euo pipefail
# shellcheck source=tools/fetch.sh
. "$(dirname "$0")/fetch.sh"
name=prometheus label=Prometheus
programs=(prometheus promtool)
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/proxyd/prometheus

where() {
  local folder program
  for folder in /usr/bin /usr/local/bin "$cache"; do
    for program in "${programs[@]}"; do [ -x "$folder/$program" ] || continue 2; done
    echo "$folder"
    return
  done
  return 1
}

download() { apt-get -qq -o APT::Sandbox::User=root download prometheus 2>error; }

unpack() {
  local program
  dpkg-deb -x prometheus_*.deb unpacked || return 1
  for program in "${programs[@]}"; do [ -x "unpacked/usr/bin/$program" ] || return 1; done
  mv unpacked/usr/bin ready
}

fetched "$@"
