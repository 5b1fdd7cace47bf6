"""TLS for gRPC and HTTP: certificate files, reloaded when they change, and client certificates."""
