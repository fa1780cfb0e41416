"""Implements version 2026-07-28 of the protocol, in which each request is independent of earlier requests."""
