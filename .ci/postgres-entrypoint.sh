#!/bin/sh
# The part of the official image's entrypoint that tests rely on.
set -eu

if [ "${1:-}" = postgres ]; then
  export PGDATA=${PGDATA:-/var/lib/postgresql/data/pgdata}
  as_postgres='setpriv --reuid=postgres --regid=postgres --clear-groups'
  user=${POSTGRES_USER:-postgres}
  database=${POSTGRES_DB:-$user}

  if [ ! -e "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    chown -R postgres:postgres "$PGDATA"
    printf %s "${POSTGRES_PASSWORD:?must be set}" >/run/password
    chown postgres /run/password
    $as_postgres initdb -U "$user" -E UTF8 --locale=C.UTF-8 --auth-host=scram-sha-256 --auth-local=trust --pwfile=/run/password
    rm /run/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    if [ "$database" != postgres ]; then
      echo "CREATE DATABASE \"$database\"" | $as_postgres postgres --single -j postgres
    fi
    # Like the official image: set up by a first server that listens on its socket alone.
    $as_postgres pg_ctl -w start -o "-c listen_addresses='' -c unix_socket_directories=/tmp"
    for script in /docker-entrypoint-initdb.d/*.sql; do
      [ ! -e "$script" ] || env -u PGHOST $as_postgres psql -v ON_ERROR_STOP=1 -h /tmp -U "$user" -d "$database" -f "$script"
    done
    $as_postgres pg_ctl -w -m fast stop
  fi
  exec $as_postgres "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
fi
exec "$@"
