"""The SQL for the table of nodes. A node counts as running while its process renews its lease."""

from __future__ import annotations

from typing import Final

from parley.errors import NodeIdTaken
from parley.ports.nodes import Node, NodeLoad
from parley.stores.postgres.driver import Connection

__all__ = ["ALIVE", "LOCKS", "MAY_RETURN", "all_nodes", "announce", "announce_load", "other_nodes"]

LOCKS: Final = 730_693
"""The first half of the key of a lease holder's advisory lock. The second half is the number of the lease
holder.
"""

MAY_RETURN: Final = "(h.expires_at > clock_timestamp())"
"""An SQL condition that is true if the row `h` of the table `holders` has not expired. While the condition is true,
the process of the row may be running, even if the process is not connected to the database.
"""

ALIVE: Final = f"""({MAY_RETURN} AND (
    h.server <> pg_postmaster_start_time() OR NOT pg_try_advisory_xact_lock_shared({LOCKS}, h.number)
))"""
"""An SQL condition that is true if the process of the row `h` of the table `holders` is running and connected.

The process is connected if it holds its advisory lock. If the process acquired the lock on another server, before a
failover, the condition ignores the lock.
"""


async def announce(db: Connection, node: Node, number: int, former: int | None) -> None:
    """Store that the lease holder `number` is the node `node`.

    If the node id belongs to an earlier process that has exited, that process loses its leases. `former` is the
    number under which the current process was registered before; None if it was not registered.

    Raises:
        NodeIdTaken: another running process has the same node id.
    """
    async with db.transaction():
        await db.execute("LOCK TABLE nodes IN SHARE ROW EXCLUSIVE MODE")
        found = await db.fetchrow(
            f"SELECT n.url, n.holder, h.pid, h.number IS NOT NULL AND {ALIVE}"
            " FROM nodes n LEFT JOIN holders h ON h.number = n.holder WHERE n.id = $1",
            node.id.encode(),
        )
        if found is not None:
            url, holder, pid, is_alive = found
            if is_alive and holder != former:
                why = f"the node `{node.id}` is already running as process {pid} at {url.decode()}; set `node.id`"
                raise NodeIdTaken("the database", why)
            await db.execute("DELETE FROM holders WHERE number = $1", holder)
        await db.execute("DELETE FROM nodes n WHERE NOT EXISTS (SELECT FROM holders h WHERE h.number = n.holder)")
        await db.execute(
            "INSERT INTO nodes (id, url, version, holder, mode, roots, repositories)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            node.id.encode(),
            node.url.encode(),
            node.version,
            number,
            node.mode,
            [root.encode(errors="surrogateescape") for root in node.roots],
            list(node.repositories),
        )


async def announce_load(db: Connection, number: int | None, load: NodeLoad) -> None:
    """If the load of the node whose lease holder has the number `number` has changed, store the new load. Do
    nothing if `number` is None.
    """
    await db.execute(
        "UPDATE nodes SET running = $2, is_draining = $3, missing = $4 WHERE holder = $1"
        " AND (running, is_draining, missing) IS DISTINCT FROM ($2::integer, $3::boolean, $4::bytea[])",
        number,
        load.running,
        load.is_draining,
        [root.encode(errors="surrogateescape") for root in load.missing],
    )


async def other_nodes(db: Connection, number: int | None) -> list[Node]:
    """Return the running nodes, except the node whose lease holder has the number `number`. If `number` is
    None, return all running nodes.
    """
    return await _nodes(db, f"{ALIVE} AND n.holder IS DISTINCT FROM $1", number)


async def all_nodes(db: Connection) -> list[Node]:
    """Return all nodes, including nodes that are not running."""
    return await _nodes(db, "true")


async def _nodes(db: Connection, condition: str, *arguments: int | None) -> list[Node]:
    rows = await db.fetch(
        "SELECT n.id, n.url, n.version, n.mode, n.roots, n.running, n.is_draining, n.repositories, n.missing,"
        f" h.number IS NOT NULL AND {ALIVE}"
        f" FROM nodes n LEFT JOIN holders h ON h.number = n.holder WHERE {condition} ORDER BY n.id",
        *arguments,
    )
    return [
        Node(
            id=row[0].decode(),
            url=row[1].decode(),
            version=row[2],
            mode=row[3],
            roots=tuple(root.decode(errors="surrogateescape") for root in row[4]),
            running=row[5],
            is_draining=row[6],
            repositories=tuple(row[7]),
            missing=tuple(root.decode(errors="surrogateescape") for root in row[8]),
            is_alive=row[9],
        )
        for row in rows
    ]
