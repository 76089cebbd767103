"""Transport security and credentials for Kafka and Redis, as their clients want them.

Secrets are read when a client is made: a password that changes needs a restart, a token does not.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import create_conn
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from streams.patience import words
from streams.setting_values import variable

if TYPE_CHECKING:
    from faust import auth as faust

# At debug level the client logs each request in full, the one with the password too.
logging.getLogger("aiokafka.conn").setLevel(logging.INFO)

_COMMAND: Final = 20.0
"""Seconds that the command for a token may take."""
_REUSE: Final = 5.0
"""Seconds for which a command's token serves again: the connections of one start share it."""


class SecurityError(ValueError):
    """A file or a secret that cannot be used. `part` says which: ca, client_cert, client_key …"""

    def __init__(self, part: str, why: str) -> None:
        super().__init__(why)
        self.part = part


@functools.lru_cache(maxsize=8)
def tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """A context that checks certificate and host name against `ca`, None for the system's
    authorities, and shows `cert` where it is asked to. Raises SecurityError.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ValueError) as error:
        raise SecurityError("ca", _why(error)) from None
    if cert is not None:
        for part, path in (("client_cert", cert), ("client_key", key)):
            try:
                Path(path or "").read_bytes()
            except OSError as error:
                raise SecurityError(part, _why(error)) from None
        try:
            # Without a password of ours OpenSSL would ask the terminal for an encrypted key's.
            context.load_cert_chain(cert, key, password=lambda: b"-")
        except (OSError, ValueError) as error:
            told = f"no pair of certificate and unencrypted key: {_why(error)}"
            raise SecurityError("client_cert", told) from None
    return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not PEM: {(error.reason or 'UNREADABLE').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return words(error)


def secret(file: Path) -> str:
    """The first line of a file of one line. Raises SecurityError."""
    try:
        text = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError("", _why(error)) from None
    if not text or "\n" in text:
        raise SecurityError("", "it must hold one line, the secret")
    return text


# -- Kafka -----------------------------------------------------------------------------------


class TokenError(KafkaError):  # type: ignore[misc] # the client ships no types
    """There is no token; asked for again like any other outage of Kafka."""


class Token(AbstractTokenProvider):  # type: ignore[misc] # as above
    """An OAuth bearer token: what a file holds, or what a command prints, at every connection.

    Safe to share between threads, as Faust's consumer has one of its own.
    """

    def __init__(self, file: Path | None, command: tuple[str, ...]) -> None:
        self._file = file
        self._command = command
        self._lock = threading.Lock()
        self._last: tuple[float, str] | None = None

    async def token(self) -> str:
        """Raises TokenError."""
        return await asyncio.to_thread(self._token)

    def _token(self) -> str:
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last[0] < _REUSE:
                return self._last[1]
            text = self._read() if self._file else self._run()
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise TokenError(f"what {self._source} gives is no token")
            if not self._file:
                self._last = (now, text)
            return text

    @property
    def _source(self) -> str:
        return variable("kafka_token_file" if self._file else "kafka_token_command")

    def _read(self) -> str:
        assert self._file is not None
        try:
            return self._file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"no token from {self._source}: {_why(error)}") from None

    def _run(self) -> str:
        """Neither the command nor what it prints is ever told: both may hold secrets."""
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command, without a shell
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND,
                check=False,
            )
        except OSError as error:
            raise TokenError(f"no token from {self._source}: {_why(error)}") from None
        except subprocess.TimeoutExpired:
            raise TokenError(f"no token from {self._source} within {_COMMAND:g} s") from None
        if done.returncode:
            raise TokenError(f"no token from {self._source}: status {done.returncode}")
        return done.stdout.decode("utf-8", "replace").strip()


def credentials(args: dict[str, Any]) -> faust.Credentials | None:
    """What a Faust app needs to do what other clients do with `args` (`Settings.kafka_args`)."""
    # Agents load this module for their exporter, and Faust takes options such as -L from their
    # command line as soon as it is imported.
    from faust import auth as faust  # noqa: PLC0415

    protocol, context = args.get("security_protocol", "PLAINTEXT"), args.get("ssl_context")
    if protocol == "PLAINTEXT":
        return None
    if protocol == "SSL":
        return faust.SSLCredentials(context)
    if "sasl_oauth_token_provider" in args:
        return faust.OAuthCredentials(
            oauth_cb=args["sasl_oauth_token_provider"], ssl_context=context
        )
    return faust.SASLCredentials(
        username=args["sasl_plain_username"],
        password=args["sasl_plain_password"],
        mechanism=args["sasl_mechanism"],
        ssl_context=context,
    )


async def refusal(args: dict[str, Any]) -> str:
    """One sentence why none of the brokers can be used, with the settings to look at.

    Connects to each in turn as a client would; `args` are those of `Settings.kafka_args`.
    """
    servers = args["bootstrap_servers"]
    rest = {name: value for name, value in args.items() if name != "bootstrap_servers"}
    told = ""
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        try:
            connection = await create_conn(
                host.strip("[]"), int(port), request_timeout_ms=10_000, **rest
            )
            try:
                answer = await connection.send(MetadataRequest([]))
            finally:
                connection.close()
            if not answer.brokers:  # the client overlooks that a token was refused
                raise SaslAuthenticationFailed("it names no broker")
        except (KafkaError, OSError, TimeoutError) as error:
            told = told or _explained(error, rest)
    if not told:
        return f"no Kafka broker answers at {servers}"
    return f"no Kafka broker at {servers} can be used: {told}"


def _explained(error: Exception, args: dict[str, Any]) -> str:
    """Empty when nobody answers at all."""
    protocol = args.get("security_protocol", "PLAINTEXT")
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate: {error.verify_message}; see {variable('kafka_ca')}"
        case ssl.SSLError():
            return (
                f"TLS fails ({(error.reason or 'no TLS').replace('_', ' ').lower()}); "
                f"see {variable('kafka_security_protocol')}"
            )
        case UnsupportedSaslMechanismError():
            mechanism = args["sasl_mechanism"]
            return f"it does not offer {mechanism}; see {variable('kafka_sasl_mechanism')}"
        case SaslAuthenticationFailed():
            names = ("kafka_username", "kafka_password_file")
            if "sasl_oauth_token_provider" in args:
                names = ("kafka_token_file", "kafka_token_command")
            see = ", ".join(variable(name) for name in names)
            return f"it refuses the credentials: {words(error)}; see {see}"
        case TokenError():
            return words(error)
        case ConnectionRefusedError():
            return ""
        case KafkaConnectionError() | ConnectionResetError() | TimeoutError():
            return (
                f"it does not speak {protocol} or is not ready; "
                f"see {variable('kafka_security_protocol')}"
            )
        case OSError():
            return words(error)
    return words(error)
