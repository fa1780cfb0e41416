#!/bin/sh
# Creates the file .env with new passwords and a new token for compose.yaml. Fails if the file exists.
set -eu
cd "$(dirname "$0")"
[ ! -e .env ] || { echo ".env exists already" >&2; exit 1; }
secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat > .env <<END
POSTGRES_PASSWORD=$(secret)
PARLEY_DB_PASSWORD=$(secret)
REPLICATION_PASSWORD=$(secret)
PARLEY_NODE_TOKEN=$(secret)
OPENAI_API_KEY=${OPENAI_API_KEY:-}
END
