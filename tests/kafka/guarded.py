"""The listener of the test brokers that requires TLS, a password and rights."""

from pathlib import Path
from typing import Final

from examples.kafka_cluster import KafkaCluster
from examples.secure_demo.authority import Authority

PROTOCOL: Final = "SASL_SSL"
PASSWORD_VARIABLE: Final = "PURGATORY_KAFKA_SASL_PASSWORD"
PASSWORDS: Final = {"admin": "of-the-admin", "watcher": "of-the-watcher", "daemon": "of-the-daemon"}
"""The admin has all rights, and so does every client of the other listener."""


def broker_settings(folder: Path) -> dict[str, object]:
    """Issue a certificate into the folder; return the brokers' settings."""
    authority = Authority("The broker's authority")
    issued = authority.issue("broker", hosts=["localhost", "127.0.0.1"])
    (folder / "authority.pem").write_bytes(authority.certificate_pem)
    (folder / "broker.pem").write_bytes(issued.key_pem + issued.certificate_pem)
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "authority.pem",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }


class GuardedBrokers:
    """The listener of a cluster, with files of settings in a folder of the test."""

    def __init__(self, cluster: KafkaCluster, brokers_folder: Path, folder: Path) -> None:
        self.bootstrap: Final = cluster.guarded_bootstrap
        self._folder: Final = folder
        self._connection: Final = {
            "security.protocol": PROTOCOL,
            "ssl.ca.location": str(brokers_folder / "authority.pem"),
            "sasl.mechanism": "PLAIN",
        }

    def config(self, name: str, **changes: str) -> str:
        """A source's option: the file with all settings except the password."""
        lines = self._connection | {"sasl.username": "watcher"} | changes
        path = self._folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        return f"config={path}"
