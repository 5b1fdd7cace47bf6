"""`make secure-demo`: a daemon with TLS, client certificates, tokens and a policy, and what each kind of caller sees.

`setting` makes the files and starts the daemon, `calls` are the rows of the table; begin with those.
"""
