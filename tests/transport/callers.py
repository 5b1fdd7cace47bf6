"""Callers of a daemon with TLS other than our client: Python's ssl, plain gRPC stubs, and HTTP."""

import asyncio
import ssl
import tempfile
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
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    if client is not None:
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*client.write(Path(folder), "client"))
    return context


async def certificate_served(address: str, authority: Authority, alpn: str) -> int:
    """Return the serial number of the certificate that a new connection gets. Raises ssl.SSLError."""
    host, _, port = address.rpartition(":")
    context = client_context(authority)
    context.set_alpn_protocols([alpn])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(der).serial_number


def secure_channel(address: str, authority: Authority, client: Issued | None = None) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        authority.certificate_pem,
        None if client is None else client.key_pem,
        None if client is None else client.certificate_pem,
    )
    return grpc.aio.secure_channel(address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


async def status_of(address: str, authority: Authority, client: Issued | None = None) -> grpc.StatusCode:
    """Return the status of a call of GetStatus on a connection of its own."""
    async with secure_channel(address, authority, client) as channel:
        call = PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest(), timeout=PATIENCE_S)
        code: grpc.StatusCode = await call.code()
        return code


async def fetched(
    address: str, path: str, authority: Authority, client: Issued | None = None, scheme: str = "https"
) -> tuple[int, str]:
    """Return the status and the text of a page, over a connection of its own."""
    connector = aiohttp.TCPConnector(ssl=client_context(authority, client), force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{scheme}://{address}{path}") as response,
    ):
        return response.status, await response.text()


async def metric(address: str, name: str, authority: Authority, client: Issued | None = None, **labels: str) -> float:
    _, page = await fetched(address, "/metrics", authority, client)
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return next(sample.value for sample in samples if sample.name == name and sample.labels == labels)
