"""Refuses requests whose end another server may see elsewhere (RFC 9112: 2.2, 5.2, 6.1, 6.3).

h11 reads them in one of several ways. If a proxy in front of the daemon reads them in another one, a caller can pass a
second request through it unseen.
"""

from typing import Final

HEAD_END: Final = b"\r\n\r\n"
LINE_BYTES: Final = bytes((0x09, *range(0x20, 0x7F), *range(0x80, 0x100)))


def head_fault(received: bytes) -> str:
    """Return why the request that begins here must be refused; empty if its head is valid, or not complete yet."""
    head, end, _ = received.partition(HEAD_END)
    if not end:
        return "lines must end with CR LF" if b"\n\n" in received or b"\n\r\n" in received else ""
    lines = head.split(b"\r\n")
    if b"".join(lines).translate(None, LINE_BYTES):
        return "a header must not contain control characters, and its lines must end with CR LF"
    if any(line.startswith((b" ", b"\t")) for line in lines):
        return "a header must not be folded"
    fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    lengths = [value for name, value in fields if name == b"content-length"]
    is_coded = any(name == b"transfer-encoding" for name, _ in fields)
    if len(lengths) > 1 or not all(map(bytes.isdigit, lengths)):
        return "Content-Length must be one number"
    if is_coded and (lengths or not lines[0].endswith(b"/1.1")):
        return "Transfer-Encoding needs HTTP/1.1, and no Content-Length"
    return ""
