"""HTTP: connections, requests and streams of server-sent events. Knows no message and no session."""
