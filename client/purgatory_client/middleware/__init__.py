"""Read-your-writes for web applications (docs/middleware.md): the middleware for ASGI (`asgi`) and WSGI (`wsgi`)."""

from purgatory_client.middleware.exchange import readable_replicas, wrote

__all__ = ["readable_replicas", "wrote"]
