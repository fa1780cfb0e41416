"""The client side of MCP: sessions with a server, and Streamable HTTP.

The Python client and the code for tool servers share this package. The package handles requests, results and
protocol versions. The package does not start servers, and does not depend on conversations or on the model's tools.
"""
