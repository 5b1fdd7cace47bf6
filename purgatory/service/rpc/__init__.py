"""The gRPC side: calls in, answers and refusals out."""
