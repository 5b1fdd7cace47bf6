"""The gRPC interface: methods, limits on calls, and statuses."""
