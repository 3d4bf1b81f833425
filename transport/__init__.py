"""Pacing, encoding and delivery of live video: WebSocket and HTTP.

The package knows no engine: it plays whatever fits the protocols of `transport.stream`.
"""
