"""Provides the tools of tool servers, which are programs and HTTP servers that speak MCP and offer tools.

A `ServerPool` starts and ends the servers. A turn leases them, and `ServerTools` runs the model's calls.
"""

from parley.tools.servers.calls import ServerTools
from parley.tools.servers.pool import Lease, RemoteTool, ServerPool
from parley.tools.servers.server import Timing

__all__ = ["Lease", "RemoteTool", "ServerPool", "ServerTools", "Timing"]
