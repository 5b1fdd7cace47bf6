"""What every suite measures with: workers and servers, pairs in turn, the rows that come of it."""
