"""Read-your-writes for web applications (docs/middleware.md): the middleware for ASGI (`asgi`) and WSGI (`wsgi`)."""

from purgatory_client.middleware.exchange import wrote

__all__ = ["wrote"]
