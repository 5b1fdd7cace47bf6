"""The gRPC face: calls in, answers and refusals out."""
