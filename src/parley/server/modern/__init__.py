"""MCP 2026-07-28, in which each request is independent of earlier requests."""
