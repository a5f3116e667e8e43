#!/usr/bin/env bash
# Put the programs that `make test-deploy` runs into a folder.
#
#   go        helm, kubectl, actionlint    built from the go.mod beside this file; go.sum pins every source
#   apt-get   prometheus, promtool         unpacked from the distribution's package; nothing is installed, no root needed
#
# Whatever cannot be had here is reported and is no failure: the tests that need it are skipped and say so. A program on
# PATH then serves instead.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
folder=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"

missing() { # WHY PROGRAM…
  local why=$1 name
  shift
  for name in "$@"; do
    command -v "$name" >/dev/null || echo "$name: $why, and there is none on PATH; its tests will be skipped" >&2
  done
}

if command -v go >/dev/null; then
  echo "building helm, kubectl and actionlint (some minutes the first time) …" >&2
  kubernetes=$(sed -n 's/^\tk8s.io\/kubectl v0\(.*\)/v1\1/p' go.mod) # what kubectl says its version is
  CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -o "$folder/" \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes" ./kubectl tool ||
    missing "go could not build it" helm kubectl actionlint
else
  missing "there is no Go toolchain to build it" helm kubectl actionlint
fi

prometheus_package() ( # in a shell of its own, so that the trap ends with it
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cd "$scratch" &&
    apt-get --quiet --quiet --option APT::Sandbox::User=root download prometheus &&
    dpkg-deb --extract prometheus_*.deb . &&
    install -m 755 usr/bin/prometheus usr/bin/promtool "$folder/"
)

if [ -x "$folder/prometheus" ] && [ -x "$folder/promtool" ]; then
  :
elif ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  missing "there is no apt-get to fetch it" prometheus promtool
elif ! prometheus_package; then
  missing "apt-get could not fetch it (run apt-get update?)" prometheus promtool
fi
