"""The command `parley`, with leases of three seconds instead of fifteen.

A node therefore gives up its leases after two seconds without the database, and a stopped node is replaced after
three seconds.
"""

from __future__ import annotations

import sys

from parley.cli.main import main
from parley.stores.postgres import store

LEASE_SECONDS = 3.0

if __name__ == "__main__":
    vars(store)["LEASE_SECONDS"] = LEASE_SECONDS
    sys.exit(main())
