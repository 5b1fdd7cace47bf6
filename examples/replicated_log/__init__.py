"""A small replicated log in which every wait is an operation at a Purgatory daemon.

The run starts a daemon and two follower processes. The leader, a producer and a consumer run as tasks of the main
process and talk gRPC over loopback, as the followers do.

Reading order:
    leader.py         which requests become delayed operations; the part to copy into your own broker
    membership.py     which replicas are in sync; the controller's part
    daemon_link.py    sends events to the daemon in order, and records each wait
    follower.py, clients.py     followers, producer and consumer
    log_file.py, wire.py        the log's file, and the messages on the wire
    proof.py, __main__.py       the checks, and the run
    retries.py                  `--lose-answers`: duplicates and order when producers have to send again
    shop_load.py                on a terminal: the load for the live page after the run

This is a study of waiting, not a broker: the leader is fixed, and nothing is fsynced.
"""
