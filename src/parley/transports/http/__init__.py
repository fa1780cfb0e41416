"""HTTP connections, requests and streams of server-sent events. Messages and sessions are in `server/http`."""
