# shellcheck shell=bash
# Sourced by tools that fetch a program for the tests: Debian's package, unpacked into the user's cache folder and not installed.
#
# The tool says $name (of the make target), $label (for people) and $cache, and how: where (prints where the program is, or
# fails), download (packages into the folder it is in; messages to "error") and unpack (leaves in "ready" what is kept).

fetch() {
  mkdir -p "$(dirname "$cache")"
  exec 9>"$cache.lock"
  flock 9
  ! where >/dev/null || return 0 # by somebody else, while we waited
  work=$(mktemp -d "$cache.XXXXXX") # not local: the trap outlives this function
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  download || { apt-get update -qq && download; } || return 1
  unpack || return 1
  rm -rf "$cache"
  mv -T ready "$cache"
}

fetched() {
  case "${1:-}" in
    --where)
      where || {
        echo "no $label: none is installed, none has been fetched (make $name, on Debian)" >&2
        exit 1
      }
      ;;
    "")
      if ! where >/dev/null && ! fetch; then
        echo "$name: Debian's package cannot be had: tests that need it will be skipped" >&2
        [ ! -s "${work:-}/error" ] || cat "$work/error" >&2
      fi
      ;;
    *)
      echo "usage: tools/$name.sh [--where]" >&2
      exit 2
      ;;
  esac
}
