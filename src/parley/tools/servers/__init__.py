"""Tools of tool servers: programs and HTTP servers that speak MCP and offer tools.

The process has one `ServerPool`, which starts and ends the servers. A turn borrows them by a `Lease`, and
`ServerTools` runs the model's calls. The MCP client library is imported with the first server.
"""

from parley.tools.servers.calls import ServerTools
from parley.tools.servers.pool import Lease, RemoteTool, ServerPool
from parley.tools.servers.server import Timing

__all__ = ["Lease", "RemoteTool", "ServerPool", "ServerTools", "Timing"]
