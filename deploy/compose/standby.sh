#!/bin/sh
# Copies the primary if the data directory is empty, and then runs PostgreSQL as a standby of the primary.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    pg_basebackup --dbname "host=$PRIMARY_HOST port=${PRIMARY_PORT:-5432} user=standby application_name=standby" \
        --pgdata "$PGDATA" --slot standby --wal-method stream --checkpoint fast --write-recovery-conf
    chmod 700 "$PGDATA"
    # After a promotion of this standby, there is no other standby, so writes must not wait for one.
    sed -i '/synchronous_standby_names/d' "$PGDATA/postgresql.auto.conf"
fi
exec postgres "$@"
