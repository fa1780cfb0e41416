"""Provides the tools of tool servers. A tool server is a program or an HTTP server that offers tools over MCP.

A `ServerPool` starts and ends the servers. A turn acquires a `Lease` from the pool, so that the servers run at
least until the end of the turn. `ServerTools` runs the tool calls of the model.
"""

from parley.tools.servers.calls import ServerTools
from parley.tools.servers.pool import Lease, RemoteTool, ServerPool
from parley.tools.servers.server import Timing

__all__ = ["Lease", "RemoteTool", "ServerPool", "ServerTools", "Timing"]
