#!/bin/sh
# Prints the name of a Postgres image that Docker here can run, for
# TEST_POSTGRES_IMAGE: the wanted one if it is there or can be pulled, else one
# made from Debian's packages. With the argument debian it is the latter in any
# case. Prints nothing where there is no Docker.
set -eu

wanted=${TEST_POSTGRES_IMAGE:-postgres:17-alpine}
entrypoint=$(dirname "$0")/postgres-entrypoint.sh
made=drainer-postgres:17-$(cksum <"$entrypoint" | cut -d" " -f1) # a changed entrypoint makes another image

present() { docker image inspect "$1" >/dev/null 2>&1; }

timeout 5 docker info >/dev/null 2>&1 || exit 0
if [ "${1:-}" != debian ] && { present "$wanted" || timeout 300 docker pull -q "$wanted" >/dev/null 2>&1; }; then
  echo "$wanted"
  exit
fi
if present "$made"; then
  echo "$made"
  exit
fi

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
command -v debootstrap >/dev/null || {
  $sudo apt-get update -qq
  $sudo apt-get install -qq -y --no-install-recommends debootstrap
} >&2

root=$(mktemp -d)
trap '$sudo rm -rf "$root"' EXIT
$sudo debootstrap --variant=minbase --include=postgresql-17 trixie "$root" >&2
$sudo install -m 755 "$entrypoint" "$root/usr/local/bin/docker-entrypoint.sh"
$sudo rm -rf "$root"/var/cache/apt "$root"/var/lib/apt/lists "$root"/var/lib/postgresql/17
$sudo tar -C "$root" --exclude=./proc --exclude=./sys --exclude=./dev -c . | docker import \
  -c 'ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/bin:/bin' \
  -c 'ENTRYPOINT ["docker-entrypoint.sh"]' -c 'CMD ["postgres"]' \
  -c 'EXPOSE 5432' -c 'VOLUME /var/lib/postgresql/data' \
  - "$made" >&2
echo "$made"
