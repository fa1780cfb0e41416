"""The schema of the database, as numbered migrations. A released migration is never edited.

Servers of two adjacent versions of Parley can use the same database at the same time. A migration is therefore
additive: it adds tables, indexes, and columns with defaults, and the statements of the previous version keep their
meaning. It does not remove tables, indexes and columns that the previous version needs; a migration of a later
version removes them. The table `format` contains the lowest format that a server must know to use the database. A
server can therefore use a database with a newer, compatible format.

All tables are in the schema `parley` of the database. Strings that clients choose are stored as bytes, because the
type `text` of PostgreSQL cannot contain NUL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from parley.stores.postgres.driver import Connection
from parley.stores.postgres.months import MIGRATION_LOCK, NUMBER_BITS, prepare_months

__all__ = ["MIGRATIONS", "Format", "Migration", "NewerFormat", "format_of", "migrate"]

Migration = Callable[[Connection], Awaitable[None]]

MIGRATIONS: Final[list[Migration]] = []
"""All migrations, in order. The format of a database is the number of migrations that were applied to it."""


class NewerFormat(Exception):
    """Raised when a newer version of Parley has migrated the database, and this version cannot use it."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"its format is {found}, and this version of Parley knows formats up to {known}; upgrade Parley"
        )


class Format(NamedTuple):
    """The format of a database, as recorded in the table `format`."""

    number: int
    """The number of migrations that were applied; 0 if the database has no tables of Parley."""
    compatible: int
    """The lowest format that a server must know to be able to use the database."""

    def check(self, known: int) -> None:
        """Check that a server that knows the formats up to the number `known` can use the database.

        Raises:
            NewerFormat: the server is too old for the database.
        """
        if self.compatible > known:
            raise NewerFormat(self.number, known)


async def format_of(db: Connection) -> Format:
    """Read the format of the database from the table `format`. Return `Format(0, 0)` if the table does not
    exist.
    """
    # `to_regclass` would not find a table that another process has created since the transaction began.
    exists = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'parley' AND tablename = 'format'"
    if await db.fetchval(exists) is None:
        return Format(0, 0)
    # The column `compatible` is missing before the migration that adds it.
    row = await db.fetchrow("SELECT version, (to_jsonb(f) ->> 'compatible')::integer FROM parley.format f")
    assert row is not None
    return Format(row[0], row[0] if row[1] is None else row[1])


async def migrate(db: Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Apply the migrations that the database lacks. `migrations` contains all migrations that this process can
    apply; the default is `MIGRATIONS`.

    If several processes migrate at the same time, one process applies the migrations and the others wait.

    Raises:
        NewerFormat: a newer version of Parley has migrated the database, and this version cannot use it.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    found = await format_of(db)
    if found.number < len(migrations):
        async with db.transaction():
            await db.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
            await db.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            found = await format_of(db)
            for step in migrations[found.number :]:
                await step(db)
            if found.number < len(migrations):
                await db.execute("UPDATE parley.format SET version = $1", len(migrations))
                return
    found.check(len(migrations))


def _migration(step: Migration) -> Migration:
    MIGRATIONS.append(step)
    return step


@_migration
async def m001_all_tables(db: Connection) -> None:
    """Create the first schema.

    Numbers of conversations, epochs and numbers of lease holders come from sequences, so they are never reused.
    """
    await db.execute(
        """
        CREATE SCHEMA IF NOT EXISTS parley;
        CREATE TABLE format (version integer NOT NULL);
        INSERT INTO format VALUES (0);

        CREATE SEQUENCE conversation_numbers;
        CREATE SEQUENCE epochs;
        CREATE SEQUENCE arrivals;
        CREATE SEQUENCE holder_numbers AS integer;

        -- The processes that hold leases. `server` is the start time of the server on which a process is locked.
        CREATE TABLE holders (
            number integer PRIMARY KEY,
            node bytea NOT NULL,
            pid bigint NOT NULL,
            server timestamptz NOT NULL,
            expires_at timestamptz NOT NULL
        );

        CREATE TABLE conversations (
            number bigint PRIMARY KEY,
            id bytea NOT NULL UNIQUE,
            last bigint NOT NULL,
            epoch bigint NOT NULL DEFAULT 0,
            batch bytea NOT NULL,
            holder integer,
            owner_address bytea,
            owner_since double precision,
            archived boolean NOT NULL,
            state text NOT NULL,
            updated_at double precision NOT NULL,
            details bytea NOT NULL,
            title text NOT NULL,
            directory bytea NOT NULL,
            read_seq bigint NOT NULL,
            ended_seq bigint NOT NULL,
            ended_at double precision,
            has_failed boolean NOT NULL
        ) WITH (fillfactor = 80);
        CREATE INDEX conversations_by_activity ON conversations (archived, updated_at, id);
        CREATE INDEX conversations_by_directory ON conversations (directory, archived, updated_at, id);
        CREATE INDEX conversations_asking ON conversations (updated_at, id) WHERE state = 'asking';
        CREATE INDEX conversations_ended ON conversations (updated_at, id)
            WHERE state = 'idle' AND ended_seq > read_seq;

        CREATE TABLE entries (
            conversation bigint NOT NULL,
            seq bigint NOT NULL,
            at double precision NOT NULL,
            type bytea NOT NULL,
            is_event boolean NOT NULL,
            is_cut boolean NOT NULL,
            size integer NOT NULL,
            key bytea,
            arrival bigint,
            words text,
            body bytea NOT NULL,
            PRIMARY KEY (conversation, seq)
        );
        CREATE INDEX entries_by_key ON entries (key, conversation) WHERE key IS NOT NULL;
        CREATE INDEX entries_by_arrival ON entries (arrival) WHERE arrival IS NOT NULL;

        -- Blobs belong to one conversation, so that deleting the conversation also deletes them.
        CREATE TABLE blobs (
            conversation bigint, hash bytea, data bytea NOT NULL, PRIMARY KEY (conversation, hash)
        );
        ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;
        CREATE TABLE cuts (
            conversation bigint,
            seq bigint,
            position bigint,
            hash bytea NOT NULL,
            PRIMARY KEY (conversation, seq, position)
        );
        CREATE TABLE checkpoints (conversation bigint PRIMARY KEY, seq bigint NOT NULL, data bytea NOT NULL);
        CREATE TABLE read_marks (
            conversation bigint, reader bytea, seq bigint NOT NULL, PRIMARY KEY (conversation, reader)
        );

        -- Deleted conversations whose entries are still being removed, and drafts. A draft has a holder.
        CREATE TABLE removed (conversation bigint PRIMARY KEY, last bigint NOT NULL, holder integer);

        CREATE TABLE tokens (
            name bytea PRIMARY KEY,
            digest bytea NOT NULL UNIQUE,
            role text NOT NULL,
            conversation bytea,
            created_at double precision NOT NULL,
            expires_at double precision,
            used_at double precision
        );
        CREATE TABLE http_sessions (
            digest bytea PRIMARY KEY,
            principal bytea NOT NULL,
            data bytea NOT NULL,
            used_at double precision NOT NULL
        );
        -- The homes whose conversations were copied to this database.
        CREATE TABLE migrated_from (source bytea PRIMARY KEY, is_complete boolean NOT NULL);
        CREATE INDEX http_sessions_by_use ON http_sessions (used_at);
        """
    )
    await _index_words(db)


@_migration
async def m002_nodes(db: Connection) -> None:
    """Create the table of nodes. The column `holder` contains the number of the node's process in the table of
    lease holders. A node is running while its process is running.
    """
    await db.execute(
        """
        CREATE TABLE nodes (
            id bytea PRIMARY KEY,
            url bytea NOT NULL,
            version text NOT NULL,
            holder integer NOT NULL
        );
        """
    )


@_migration
async def m003_workspaces(db: Connection) -> None:
    """Add columns for the working directories and the load of each node."""
    await db.execute(
        """
        ALTER TABLE nodes ADD COLUMN mode text NOT NULL DEFAULT 'local';
        ALTER TABLE nodes ADD COLUMN roots bytea[] NOT NULL DEFAULT '{}';
        ALTER TABLE nodes ADD COLUMN running integer NOT NULL DEFAULT 0;
        ALTER TABLE nodes ADD COLUMN is_draining boolean NOT NULL DEFAULT false;
        """
    )


@_migration
async def m004_months(db: Connection) -> None:
    """Partition three tables by the month in which a conversation was created: `entries`, `cuts` and `blobs`.

    The upper bits of a conversation's number are the month. All existing numbers are small, so their month is 0,
    and the existing tables become the partitions of month 0. No row is copied, but the entries are read once,
    because PostgreSQL checks that all rows belong to the partition. Processes of an older version may continue: the
    numbers of the conversations that they create are small as well.
    """
    await db.execute(
        f"""
        CREATE TABLE months (month integer PRIMARY KEY, prepared_at timestamptz NOT NULL DEFAULT now());
        INSERT INTO months VALUES (0);
        CREATE FUNCTION this_month() RETURNS integer LANGUAGE sql STABLE AS $$
            SELECT (extract(year FROM t) * 12 + extract(month FROM t) - 1)::integer
            FROM (SELECT now() AT TIME ZONE 'UTC') AS n(t)
        $$;
        CREATE FUNCTION new_conversation_number() RETURNS bigint LANGUAGE sql VOLATILE AS $$
            SELECT (max(month)::bigint << {NUMBER_BITS}) + nextval('parley.conversation_numbers')
            FROM parley.months WHERE month <= parley.this_month()
        $$;

        ALTER TABLE entries RENAME TO entries_0;
        ALTER INDEX entries_pkey RENAME TO entries_0_pkey;
        ALTER INDEX entries_by_key RENAME TO entries_0_by_key;
        ALTER INDEX entries_by_arrival RENAME TO entries_0_by_arrival;
        ALTER INDEX IF EXISTS entries_by_words RENAME TO entries_0_by_words;
        CREATE TABLE entries (LIKE entries_0 INCLUDING STORAGE, PRIMARY KEY (conversation, seq))
            PARTITION BY RANGE (conversation);
        CREATE INDEX entries_by_key ON entries (key, conversation) WHERE key IS NOT NULL;
        CREATE INDEX entries_by_arrival ON entries (arrival) WHERE arrival IS NOT NULL;

        ALTER TABLE cuts RENAME TO cuts_0;
        ALTER INDEX cuts_pkey RENAME TO cuts_0_pkey;
        CREATE TABLE cuts (LIKE cuts_0, PRIMARY KEY (conversation, seq, position))
            PARTITION BY RANGE (conversation);

        ALTER TABLE blobs RENAME TO blobs_0;
        ALTER INDEX blobs_pkey RENAME TO blobs_0_pkey;
        CREATE TABLE blobs (LIKE blobs_0 INCLUDING STORAGE, PRIMARY KEY (conversation, hash))
            PARTITION BY RANGE (conversation);
        """
    )
    if await db.fetchval("SELECT to_regclass('entries_0_by_words')") is not None:
        await db.execute(
            "CREATE INDEX entries_by_words ON entries USING gin (words gin_trgm_ops) WHERE words IS NOT NULL"
        )
    for table in ("entries", "cuts", "blobs"):
        await db.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {table}_0 FOR VALUES FROM (MINVALUE) TO ({1 << NUMBER_BITS})"
        )
    # Each append changes the row of its conversation, so the table needs vacuuming often.
    await db.execute("ALTER TABLE conversations SET (autovacuum_vacuum_scale_factor = 0.02)")
    await prepare_months(db)


@_migration
async def m005_sign_ins(db: Connection) -> None:
    """Add a table for the sign-ins to the web page. Their secrets are stored as hashes."""
    await db.execute(
        """
        CREATE TABLE sign_ins (
            digest bytea PRIMARY KEY,
            secret bytea NOT NULL,
            token bytea NOT NULL,
            created_at double precision NOT NULL,
            used_at double precision NOT NULL,
            push bytea
        );
        """
    )


@_migration
async def m006_compatible_formats(db: Connection) -> None:
    """Add the column `compatible`: the lowest format that a server must know to use the database.

    The column initially contains 6, the format of this migration. Earlier versions do not know the column, and
    refuse every database with a newer format.
    """
    await db.execute("ALTER TABLE format ADD COLUMN compatible integer NOT NULL DEFAULT 6")


@_migration
async def m007_repositories(db: Connection) -> None:
    """Add a column for the names of the repositories from which each node can create worktrees."""
    await db.execute("ALTER TABLE nodes ADD COLUMN repositories text[] NOT NULL DEFAULT '{}'")


@_migration
async def m008_missing_roots(db: Connection) -> None:
    """Add a column for the workspace roots of each node that currently do not exist."""
    await db.execute("ALTER TABLE nodes ADD COLUMN missing bytea[] NOT NULL DEFAULT '{}'")


@_migration
async def m009_titles(db: Connection) -> None:
    """Copy the searchable titles to a separate table, which has a trigram index if the messages have one.

    Each append changes the row of its conversation, so an index of titles in the table `conversations` would make
    each append slower. Triggers keep the copies current, because servers of the previous version do not know the
    table. Writers wait only for the last step, not while the titles are copied.
    """
    await db.execute(
        """
        CREATE TABLE titles (conversation bigint PRIMARY KEY, title text NOT NULL);
        INSERT INTO titles SELECT number, title FROM conversations WHERE title <> '';
        """
    )
    if await db.fetchval("SELECT to_regclass('entries_by_words')") is not None:
        await db.execute("CREATE INDEX titles_by_words ON titles USING gin (title gin_trgm_ops)")
    await db.execute(
        """
        CREATE FUNCTION copy_title() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO parley.titles VALUES (NEW.number, NEW.title)
            ON CONFLICT (conversation) DO UPDATE SET title = excluded.title;
            RETURN NULL;
        END
        $$;
        CREATE TRIGGER new_title AFTER INSERT ON conversations FOR EACH ROW
            WHEN (NEW.title <> '') EXECUTE FUNCTION copy_title();
        CREATE TRIGGER changed_title AFTER UPDATE OF title ON conversations FOR EACH ROW
            WHEN (NEW.title <> OLD.title) EXECUTE FUNCTION copy_title();
        DELETE FROM titles t WHERE NOT EXISTS (SELECT FROM conversations c WHERE c.number = t.conversation);
        INSERT INTO titles
            SELECT c.number, c.title FROM conversations c LEFT JOIN titles t ON t.conversation = c.number
            WHERE c.title <> coalesce(t.title, '')
            ON CONFLICT (conversation) DO UPDATE SET title = excluded.title;
        ALTER TABLE titles ADD FOREIGN KEY (conversation) REFERENCES conversations ON DELETE CASCADE NOT VALID;
        """
    )


async def _index_words(db: Connection) -> None:
    """Create the trigram index of messages. Do nothing if the database does not have the extension `pg_trgm` and
    the database user may not add the extension.
    """
    from asyncpg import PostgresError

    try:
        async with db.transaction():  # a savepoint is used, so that a failure does not abort the migration
            await db.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public")
            await db.execute(
                "CREATE INDEX entries_by_words ON entries USING gin (words gin_trgm_ops) WHERE words IS NOT NULL"
            )
    except PostgresError:
        pass  # without the index, searches scan the messages
