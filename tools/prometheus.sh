#!/usr/bin/env bash
# Where the Prometheus of the tests is (prometheus, promtool), and fetching it where it is not.
#
#   tools/prometheus.sh            fetches it unless it is there; where it cannot, says so, and is content
#   tools/prometheus.sh --where    prints its folder; says what is missing and fails where there is none
#
# An installed one will do. Else Debian's package is unpacked into the user's cache folder (about 95 MB), not installed: its
# service would start, now or at the next boot, and nobody has asked for a monitoring system on this machine.
set -euo pipefail
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

fetch() {
  local program
  mkdir -p "$(dirname "$cache")"
  exec 9>"$cache.lock"
  flock 9
  ! where >/dev/null || return 0 # by somebody else, while we waited
  work=$(mktemp -d "$cache.XXXXXX") # not local: the trap outlives this function
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  download || { apt-get update -qq && download; } || return 1
  dpkg-deb -x prometheus_*.deb unpacked || return 1
  for program in "${programs[@]}"; do [ -x "unpacked/usr/bin/$program" ] || return 1; done
  rm -rf "$cache"
  mv -T unpacked/usr/bin "$cache"
}

download() { apt-get -qq -o APT::Sandbox::User=root download prometheus 2>"$work/error"; }

case "${1:-}" in
  --where)
    where || {
      echo "no Prometheus: none is installed, none has been fetched (make prometheus, on Debian)" >&2
      exit 1
    }
    ;;
  "")
    if ! where >/dev/null && ! fetch; then
      echo "prometheus: Debian's package cannot be had: tests that need it will be skipped" >&2
      [ ! -s "${work:-}/error" ] || cat "$work/error" >&2
    fi
    ;;
  *)
    echo "usage: tools/prometheus.sh [--where]" >&2
    exit 2
    ;;
esac
