"""TLS for gRPC and HTTP: the certificate files, reloaded when they change, and who presents a certificate."""
