"""What all clients of a server share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from parley.config.load import Loader
from parley.runtime.conversations import Conversations

__all__ = ["ServerContext"]


class ServerContext:
    def __init__(
        self, *, conversations: Conversations, loader: Loader, on_initialized: Callable[[], None] = lambda: None
    ) -> None:
        self.conversations = conversations
        self.loader = loader
        self.request_ids = count()
        """Of what clients are asked, over the whole process."""
        self.on_initialized = on_initialized
        """Called when a client's `initialize` was answered: the time for what start-up did not need."""
