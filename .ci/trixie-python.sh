#!/usr/bin/env bash
# Prints the path of a Python of Debian trixie, with every driver that the package for Python speaks through. It runs
# in a tree of its own, which holds a copy of clients/ and docs/. Needs root, and takes two minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:-/var/tmp/drainer-trixie}
if [ ! -x "$root/python" ] || [ ! -x "$root/usr/bin/mypy" ]; then
  command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap; } >&2
  rm -rf "$root"
  drivers=python3-psycopg2,python3-psycopg,python3-psycopg-pool,python3-asyncpg,python3-sqlalchemy,python3-greenlet,python3-django,python3-venv,mypy
  debootstrap --variant=minbase --include="python3,$drivers" trixie "$root" >&2
  printf '#!/bin/sh\nexec chroot %s /bin/sh -c '\''cd /src/clients/python && exec python3 "$@"'\'' -- "$@"\n' "$root" >"$root/python"
  chmod +x "$root/python"
fi
rm -rf "$root/src" && mkdir "$root/src" && cp -r clients docs "$root/src/"
echo "$root/python"
