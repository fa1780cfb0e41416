"""Tools of tool servers: programs and addresses that speak MCP, each with tools of its own.

`ServerPool` belongs to the process and keeps the servers; a `Lease` lends them to one turn;
`ServerTools` runs the model's calls in it. The client library is loaded with the first server.
"""

from parley.tools.servers.calls import ServerTools
from parley.tools.servers.pool import Lease, RemoteTool, ServerPool
from parley.tools.servers.server import Timing

__all__ = ["Lease", "RemoteTool", "ServerPool", "ServerTools", "Timing"]
