"""A small replicated log of real processes, in which every wait is one of the purgatory's.

A leader and two followers keep their log in files; a producer appends with acks=all, a consumer reads by long poll. The
leader waits for nothing by itself: it tells the daemon what happens and registers what must be waited for.

Reading order:
    leader.py         what becomes a delayed operation, and when: the part to copy into a broker of your own
    event_queue.py    telling the daemon what happened, in order, many events at a time
    membership.py     who is in sync: the controller's part
    wait_ledger.py    the daemon's waits as the leader asks for them, and an account of each
    follower.py, producer.py, consumer.py     the other processes
    log_records.py, segments.py, wire.py      bytes: a record, a log in files, messages over TCP
    cluster.py, story.py, proof.py            starts it all, tells the story, checks and prints it

A study of waiting, not a broker to run: the leader is fixed, and nothing is fsynced.
"""
