"""HTTP connections, requests and streams of server-sent events. The package `server/http` handles messages and
sessions.
"""
