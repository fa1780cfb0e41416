"""The client side of MCP: sessions with a server, and Streamable HTTP.

The Python client and the code for the MCP servers of the configuration share this package. The package handles
requests, results and protocol versions. It does not start servers, and does not depend on conversations or on the
model's tools.
"""
