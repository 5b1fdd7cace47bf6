"""Ready gates: `GET /v1/ready` answers whether everything written before its first request has been processed."""
