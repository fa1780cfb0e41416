#!/bin/sh
# Runs when the data directory of the primary is created. Creates the role and the database of Parley, and the role and
# the replication slot of a synchronous standby. From the next start on, PostgreSQL acknowledges a write when the
# standby has it too.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'END'
\getenv parley PARLEY_DB_PASSWORD
\getenv replication REPLICATION_PASSWORD
CREATE ROLE parley LOGIN PASSWORD :'parley';
CREATE ROLE standby LOGIN REPLICATION PASSWORD :'replication';
CREATE DATABASE parley OWNER parley;
SELECT pg_create_physical_replication_slot('standby') \g /dev/null
ALTER SYSTEM SET synchronous_standby_names = 'standby';
END
echo "host replication standby all scram-sha-256" >> "$PGDATA/pg_hba.conf"
