"""A small replicated log of real processes, in which every wait is one of the purgatory's.

A leader and two followers keep their log in files; a producer appends with acks=all, a consumer reads by long poll. The
leader waits for nothing by itself: it reports to the daemon what happens and registers what must be waited for.

Reading order:
    leader.py         what becomes a delayed operation, and when: the part to copy into a broker of your own
    membership.py     who is in sync: the controller's part
    daemon_link.py    events to the daemon in order, waits at the daemon, and an account of each wait
    follower.py, producer.py, consumer.py     the other processes
    log_file.py, wire.py                      bytes: a log in a file, messages between the processes
    child.py, cluster.py, story.py, proof.py  starts it all, tells the story, checks and prints it

A study of waiting, not a broker to run: the leader is fixed, and nothing is fsynced.
"""
