"""`make secure-demo`: a daemon with TLS, client certificates, tokens and a policy, and the access that each caller has.

`setting` makes the files and starts the daemon; `calls` contains the rows of the table. Start reading there.
"""
