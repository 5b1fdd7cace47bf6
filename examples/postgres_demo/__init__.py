"""`make postgres-demo`: a primary with two replicas, one of which lags; waits for one, any and all of them, and what
is stale and for how long while one is down.
"""
