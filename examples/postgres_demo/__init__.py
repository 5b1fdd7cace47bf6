"""`make postgres-demo`: a primary and two replicas, one of which lags. Waits for one, any and all of them, and shows
which marks are stale, and for how long, while one replica is down.
"""
