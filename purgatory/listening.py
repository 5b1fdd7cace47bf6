"""Binds the two addresses of a daemon, whether it serves or stands by."""

import grpc

from purgatory.extension import StartupError
from purgatory.service.http.site import HttpSite
from purgatory.service.rpc.grpc_options import why_not_bindable
from purgatory.service.settings import split_address
from purgatory.service.transport.tls import Tls


def bind_grpc(server: grpc.aio.Server, address: str, tls: Tls | None) -> str:
    """Return the address with its real port. Raises `StartupError`."""
    reason = why_not_bindable(address)
    if reason is None:
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, tls.grpc_credentials())
            return f"{address.rpartition(':')[0]}:{port}"
        except RuntimeError as error:
            reason = str(error)
    raise StartupError(f"cannot listen on {address} (grpc.address): {reason}")


async def bind_http(site: HttpSite, address: str) -> str:
    """Start the site, and return the address with its real port. Raises `StartupError`."""
    try:
        port = await site.start(*split_address(address))
    except OSError as error:
        raise StartupError(f"cannot listen on {address} (http.address): {error.strerror or error}") from None
    return f"{address.rpartition(':')[0]}:{port}"
