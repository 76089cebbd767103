"""The settings that say how Kafka and Redis are reached: addresses, encryption, credentials."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr, model_validator
from pydantic_settings import BaseSettings

from streams.setting_values import (
    PATH,
    DisagreementError,
    redis_address,
    servers,
    setting,
    variable,
)

_TLS: Final = ("SSL", "SASL_SSL")
_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_TEXT: Final = "text"
_LINE: Final = "path of a file of one line"


class Connection(BaseSettings):
    """How to reach Kafka and Redis. Every Kafka client of the project, Faust's included, is made
    from `kafka_args`, every Redis client from `redis_args`.
    """

    kafka_bootstrap: Annotated[str, AfterValidator(servers)] = setting(
        "127.0.0.1:9092", "Kafka brokers to ask first.", "host:port, several separated by commas"
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        "What the brokers' listener speaks: `SSL` is TLS, `SASL` asks for credentials.",
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    )
    kafka_ca: Path | None = setting(
        None,
        "Authorities that the brokers' certificates must come from. Without one, the system's.",
        PATH,
    )
    kafka_client_cert: Path | None = setting(
        None, "Certificate chain to show to brokers that ask for one.", PATH
    )
    kafka_client_key: Path | None = setting(None, "Its private key, not encrypted.", PATH)
    kafka_sasl_mechanism: _Mechanism | None = setting(
        None,
        "How credentials are shown. `PLAIN` sends the password itself: use it with SASL_SSL only.",
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    )
    kafka_username: str | None = setting(None, "User, with PLAIN and SCRAM.", _TEXT)
    kafka_password: SecretStr | None = setting(
        None, "Its password; rather give it in KAFKA_PASSWORD_FILE.", _TEXT
    )
    kafka_password_file: Path | None = setting(
        None, "File that holds the password, read at start.", _LINE
    )
    kafka_token_file: Path | None = setting(
        None, "With OAUTHBEARER: file that holds the token, read at every connection.", _LINE
    )
    kafka_token_command: SecretStr | None = setting(
        None,
        "With OAUTHBEARER: command that prints the token, run without a shell at every connection.",
        "command line",
    )
    redis_url: Annotated[str, AfterValidator(redis_address)] = setting(
        "redis://127.0.0.1:6379/0",
        "State store, one Redis or any node of a Redis Cluster; `rediss` is TLS. "
        "A password in the URL is never printed.",
        "redis://, rediss:// or unix:// URL",
    )
    redis_username: str | None = setting(None, "ACL user; without one, Redis's `default`.", _TEXT)
    redis_password: SecretStr | None = setting(
        None, "Its password; rather give it in REDIS_PASSWORD_FILE.", _TEXT
    )
    redis_password_file: Path | None = setting(
        None, "File that holds the password, read at start.", _LINE
    )
    redis_ca: Path | None = setting(
        None,
        "Authorities that the Redis's certificate must come from. Without one, the system's.",
        PATH,
    )
    redis_client_cert: Path | None = setting(
        None, "Certificate chain to show to a Redis that asks for one.", PATH
    )
    redis_client_key: Path | None = setting(None, "Its private key, not encrypted.", PATH)

    def kafka_args(self) -> dict[str, Any]:
        """Arguments with which every aiokafka client of the project reaches the brokers."""
        protocol = self.kafka_security_protocol
        args: dict[str, Any] = {
            "bootstrap_servers": self.kafka_bootstrap,
            "security_protocol": protocol,
        }
        if protocol in _TLS:
            args["ssl_context"] = self._tls("kafka")
        if protocol in _SASL:
            args["sasl_mechanism"] = self.kafka_sasl_mechanism
            if self.kafka_sasl_mechanism == "OAUTHBEARER":
                from streams import security  # noqa: PLC0415 - brings the clients; --help has none

                command = self.kafka_token_command
                args["sasl_oauth_token_provider"] = security.Token(
                    self.kafka_token_file,
                    tuple(shlex.split(command.get_secret_value())) if command else (),
                )
            else:
                args["sasl_plain_username"] = self.kafka_username
                args["sasl_plain_password"] = self._password("kafka")
        return args

    def redis_args(self) -> dict[str, Any]:
        """Arguments, beside the URL, with which every Redis client reaches the state store."""
        args: dict[str, Any] = {}
        if self.redis_username is not None:
            args["username"] = self.redis_username
        if (password := self._password("redis")) is not None:
            args["password"] = password
        if self.redis_url.startswith("rediss:"):
            args["ssl_check_hostname"] = True
            for name, path in (
                ("ssl_ca_certs", self.redis_ca),
                ("ssl_certfile", self.redis_client_cert),
                ("ssl_keyfile", self.redis_client_key),
            ):
                if path is not None:
                    args[name] = str(path)
        return args

    # -- what fits together --------------------------------------------------------------------

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        """Refuses settings that contradict each other, and files that cannot be used."""
        self._check_kafka()
        self._check_redis()
        for server in ("kafka", "redis"):
            cert, key = f"{server}_client_cert", f"{server}_client_key"
            self._together(cert, key)
            self._together(key, cert)
            self._not_both(f"{server}_password", f"{server}_password_file")
            self._password(server)
            self._tls(server)
        return self

    def _check_kafka(self) -> None:
        protocol, mechanism = self.kafka_security_protocol, self.kafka_sasl_mechanism
        where = variable("kafka_security_protocol")
        if protocol not in _TLS:
            self._none("needs " + where, "SSL or SASL_SSL", "ca", "client_cert", "client_key")
        user = ("username", "password", "password_file")
        token = ("token_file", "token_command")
        if protocol not in _SASL:
            allowed = "SASL_SSL or SASL_PLAINTEXT"
            self._none("needs " + where, allowed, "sasl_mechanism", *user, *token)
            return
        if mechanism is None:
            raise DisagreementError("kafka_sasl_mechanism", f"needed by {where}={protocol}")
        needed_by = f"needed by {variable('kafka_sasl_mechanism')}={mechanism}"
        if mechanism == "OAUTHBEARER":
            self._none("has no use with " + variable("kafka_sasl_mechanism"), mechanism, *user)
            self._not_both("kafka_token_file", "kafka_token_command")
            if not (self.kafka_token_file or self.kafka_token_command):
                told = f"{needed_by}, or {variable('kafka_token_command')}"
                raise DisagreementError("kafka_token_file", told)
            self._check_command()
            return
        self._none("has no use with " + variable("kafka_sasl_mechanism"), mechanism, *token)
        if not self.kafka_username:
            raise DisagreementError("kafka_username", needed_by)
        if not (self.kafka_password or self.kafka_password_file):
            told = f"{needed_by}, or {variable('kafka_password')}"
            raise DisagreementError("kafka_password_file", told)

    def _check_command(self) -> None:
        if self.kafka_token_command is None:
            return
        try:
            words = shlex.split(self.kafka_token_command.get_secret_value())
        except ValueError:
            raise DisagreementError("kafka_token_command", "a quote is not closed") from None
        if not words:
            raise DisagreementError("kafka_token_command", "it is empty")

    def _check_redis(self) -> None:
        parts = urlsplit(self.redis_url)
        where = variable("redis_url")
        if parts.scheme != "rediss":
            for name in ("redis_ca", "redis_client_cert", "redis_client_key"):
                if getattr(self, name) is not None:
                    raise DisagreementError(name, f"needs a rediss:// URL in {where}")
        given = self.redis_password or self.redis_password_file
        if parts.password is not None and given:
            name = "redis_password" if self.redis_password else "redis_password_file"
            raise DisagreementError(name, f"{where} holds a password as well")
        if parts.username and self.redis_username is not None:
            raise DisagreementError("redis_username", f"{where} holds a user as well")
        if self.redis_username is not None and not given:
            told = f"needs {variable('redis_password_file')} or {variable('redis_password')}"
            raise DisagreementError("redis_username", told)

    def _none(self, why: str, value: str, *names: str) -> None:
        """Refuses those of Kafka's settings that are given although they have no use."""
        for name in names:
            if getattr(self, f"kafka_{name}") is not None:
                raise DisagreementError(f"kafka_{name}", f"{why}={value}")

    def _together(self, name: str, other: str) -> None:
        if getattr(self, name) is not None and getattr(self, other) is None:
            raise DisagreementError(name, f"needs {variable(other)}")

    def _not_both(self, name: str, other: str) -> None:
        if getattr(self, name) is not None and getattr(self, other) is not None:
            raise DisagreementError(name, f"{variable(other)} is given as well")

    def _password(self, server: str) -> str | None:
        """The password for a server, None where none is given. Raises DisagreementError."""
        file: Path | None = getattr(self, f"{server}_password_file")
        given: SecretStr | None = getattr(self, f"{server}_password")
        if file is None:
            return None if given is None else given.get_secret_value()
        from streams import security  # noqa: PLC0415 - it brings the clients, which --help lacks

        try:
            return security.secret(file)
        except security.SecurityError as error:
            raise DisagreementError(f"{server}_password_file", str(error)) from None

    def _tls(self, server: str) -> Any:
        """A server's TLS context, or None. Raises DisagreementError."""
        encrypted = (
            self.kafka_security_protocol in _TLS
            if server == "kafka"
            else self.redis_url.startswith("rediss:")
        )
        if not encrypted:
            return None
        parts = (getattr(self, f"{server}_{name}") for name in ("ca", "client_cert", "client_key"))
        from streams import security  # noqa: PLC0415 - as above

        try:
            return security.tls(*parts)
        except security.SecurityError as error:
            raise DisagreementError(f"{server}_{error.part}", str(error)) from None
