"""Callers of a daemon with TLS other than our client: Python's ssl, plain gRPC stubs, and HTTP."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from examples.secure_demo.authority import Authority, Issued
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.eventually import PATIENCE_S


def client_context(authority: Authority, client: Issued | None = None) -> ssl.SSLContext:
    """A context that trusts the authority and presents the certificate of `client`, if there is one."""
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode("ascii"))
    if client is not None:
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*client.write(Path(folder), "client"))
    return context


async def certificate_served(address: str, authority: Authority, *, alpn: str = "h2") -> int:
    """Return the serial number of the certificate that a new connection gets. Raises ssl.SSLError."""
    return await asyncio.to_thread(_certificate_served, address, authority, alpn)


def _certificate_served(address: str, authority: Authority, alpn: str) -> int:
    host, _, port = address.rpartition(":")
    context = client_context(authority)
    context.set_alpn_protocols([alpn])
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def secure_channel(
    address: str, authority: Authority, client: Issued | None = None, *, expected_host: str | None = None
) -> grpc.aio.Channel:
    """A plain gRPC channel; `expected_host` overrides the host name of the address."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate_pem,
        None if client is None else client.key_pem,
        None if client is None else client.certificate_pem,
    )
    options: list[tuple[str, object]] = [("grpc.use_local_subchannel_pool", 1)]
    if expected_host is not None:
        options.append(("grpc.ssl_target_name_override", expected_host))
    return grpc.aio.secure_channel(address, credentials, options=options)


async def status_of(
    address: str, authority: Authority, client: Issued | None = None, *, expected_host: str | None = None
) -> grpc.StatusCode:
    """Return the status of a call of GetStatus on a connection of its own."""
    async with secure_channel(address, authority, client, expected_host=expected_host) as channel:
        call = PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest(), timeout=PATIENCE_S)
        code: grpc.StatusCode = await call.code()
        return code


@asynccontextmanager
async def https(
    address: str, authority: Authority, client: Issued | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session of HTTP over TLS that keeps no connections open."""
    connector = aiohttp.TCPConnector(ssl=client_context(authority, client), force_close=True)
    async with aiohttp.ClientSession(f"https://{address}", connector=connector) as session:
        yield session


async def page_status(session: aiohttp.ClientSession, path: str) -> int:
    """Return the status after reading the whole answer: a partly read answer would leave its connection open."""
    async with session.get(path) as response:
        await response.read()
        return response.status


async def metric(session: aiohttp.ClientSession, name: str, **labels: str) -> float:
    async with session.get("/metrics") as response:
        page = await response.text()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return next(sample.value for sample in samples if sample.name == name and sample.labels == labels)
