"""A conversation as a file: one of the store's, written as it is at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from parley.app.files.homes import entries_until
from parley.conversation.export_format import ExportHead, entry_line, head_line
from parley.ports.store import Store
from parley.stores.sqlite.files import AtomicFile, directory_of, sync_directory
from parley.wire.ids import ConversationId

__all__ = ["export_conversation", "written_whole"]


async def export_conversation(store: Store, named: str, write: Callable[[bytes], object], *, now: float) -> None:
    """Write a conversation as it is at this moment, whoever goes on with it meanwhile.

    Raises:
        UnknownConversation: there is none, or it was deleted meanwhile.
        StoreError: it cannot be read.
    """
    conversation_id = ConversationId(named)
    head = await store.head(conversation_id)
    summary = head.summary
    write(
        head_line(
            ExportHead(
                conversation_id=conversation_id,
                last=head.last,
                exported_at=now,
                archived=head.archived,
                title=summary.title,
                cwd=summary.cwd,
                model=summary.model,
            )
        )
    )
    async for entry in entries_until(store, conversation_id, until=head.last):
        write(entry_line(entry))


@contextmanager
def written_whole(path: str, *, over: bool) -> Iterator[BinaryIO]:
    """A file that is there, whole and on disk, when the block ends well, and not there at all otherwise.

    It takes the place of another only where it is to be written `over` it.

    Raises:
        FileExistsError: there is one, and it stays as it is.
        OSError: it cannot be written.
    """
    with AtomicFile(path) as atomic:
        with open(atomic.name, "wb") as file:
            yield file
        atomic.commit(overwrite=over)
    sync_directory(directory_of(path))
