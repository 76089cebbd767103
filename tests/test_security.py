"""Encryption and credentials by settings, against servers that insist on them."""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import json
import logging
import re
import shutil
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme
from redis.exceptions import RedisError

from monitor.ports import Saving, Wanted, Watermark
from streams import topics
from streams.gateway import KafkaSink
from streams.reading_cache import ReadingCache
from streams.settings import SettingsError, load
from streams.spending import Budget, Limits
from streams.store import FAILURES, RedisStore, StoreRefused
from streams.topics import TopicsError
from tests.deployment import CONTRACT, Deployment, otlp_trace
from tests.services import ROOT, free_port, start_kafka, start_redis_server, wait_for

NUMBERS = itertools.count()
USER, PASSWORD = "alice", "s3cret=wo%rd"
_SASL = "org.apache.kafka.common.security"


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("AGENTTRUST_"):
            monkeypatch.delenv(name)


# -- what proves who one is ------------------------------------------------------------------


class Papers:
    """An authority of our own, a server's and a client's certificate, a password, a token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority, stranger = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = folder / "ca.pem", folder / "other-ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        stranger.cert_pem.write_to_path(self.other_ca)
        self.server = self._pair("server", authority.issue_cert("127.0.0.1", "localhost"))
        self.client = self._pair("client", authority.issue_cert("worker@agents.example"))
        self.misnamed = self._pair("misnamed", authority.issue_cert("kafka.example"))
        self.password = self.file("password", PASSWORD + "\n")
        self.wrong = self.file("wrong", "guess\n")
        self.token = self.file("token", unsecured_token() + "\n")

    def _pair(self, name: str, cert: trustme.LeafCert) -> tuple[Path, Path]:
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
        key.write_bytes(_pkcs8(cert.private_key_pem.bytes()))
        return chain, key

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


def _pkcs8(key: bytes) -> bytes:
    """The form in which Kafka reads a private key."""
    from cryptography.hazmat.primitives import serialization as s

    private = s.load_pem_private_key(key, None)
    return private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())


def unsecured_token(*, subject: str = USER, life: float = 3600) -> str:
    """A JWT without a signature: what Kafka's own handler for development takes."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now - 5, "exp": now + life})
    encoded = (base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts)
    return b".".join(encoded).decode() + "."


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


# -- Kafka -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(papers, tmp_path_factory) -> Iterator[dict[str, str]]:
    """Addresses by listener of a Kafka that asks for encryption, credentials, or both."""
    chain, key = papers.server
    pem = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": chain.read_text(),
        "ssl.keystore.key": key.read_text(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": papers.ca.read_text(),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    }
    jaas = {
        "plain": f'{_SASL}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "scram-sha-256": f"{_SASL}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{_SASL}.scram.ScramLoginModule required;",
        "oauthbearer": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="kafka";',
    }
    listeners = {
        "TLS": "SSL",
        "MUTUAL": "SSL",
        "OPEN": "SASL_PLAINTEXT",
        "CLOSED": "SASL_SSL",
        "PLAIN": "SASL_PLAINTEXT",
    }
    for name in ("open", "closed"):
        for mechanism, module in jaas.items():
            pem[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = module
    pem["listener.name.plain.sasl.enabled.mechanisms"] = "PLAIN"
    pem["listener.name.plain.plain.sasl.jaas.config"] = jaas["plain"]
    users = [f'SCRAM-SHA-{n}=[name={USER},password="{PASSWORD}"]' for n in (256, 512)]
    folder = tmp_path_factory.mktemp("guarded")
    with start_kafka(folder, listeners=listeners, properties=pem, scram=users) as kafka:
        yield {name: kafka.address(name) for name in ("PLAINTEXT", *listeners)}


def tls(papers: Papers) -> dict[str, object]:
    return {"kafka_security_protocol": "SSL", "kafka_ca": papers.ca}


def sasl(papers: Papers, mechanism: str, protocol: str = "SASL_SSL") -> dict[str, object]:
    given: dict[str, object] = {
        "kafka_security_protocol": protocol,
        "kafka_sasl_mechanism": mechanism,
    }
    if protocol == "SASL_SSL":
        given["kafka_ca"] = papers.ca
    if mechanism == "OAUTHBEARER":
        return given | {"kafka_token_file": papers.token}
    return given | {"kafka_username": USER, "kafka_password_file": papers.password}


def chosen(bootstrap: str, given: dict[str, object], **more: object):
    prefix = f"sec{next(NUMBERS)}"
    return load(
        kafka_bootstrap=bootstrap,
        topic_prefix=prefix,
        spans_topic=f"{prefix}.spans",
        logs_topic=f"{prefix}.logs",
        partitions=2,
        **given,
        **more,
    )


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.mark.services
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("listener", "protocol"), [("OPEN", "SASL_PLAINTEXT"), ("CLOSED", "SASL_SSL")]
)
def test_credentials_are_shown(guarded, papers, listener, protocol, mechanism):
    settings = chosen(guarded[listener], sasl(papers, mechanism, protocol))
    assert asyncio.run(topics.journal_partitions(settings)) is None


@pytest.mark.services
def test_tls_with_an_authority_of_ones_own_and_with_a_certificate_to_show(guarded, papers):
    assert asyncio.run(topics.journal_partitions(chosen(guarded["TLS"], tls(papers)))) is None
    chain, key = papers.client
    shown = tls(papers) | {"kafka_client_cert": chain, "kafka_client_key": key}
    assert asyncio.run(topics.journal_partitions(chosen(guarded["MUTUAL"], shown))) is None


@pytest.mark.services
def test_a_token_from_a_command(guarded, papers):
    given = sasl(papers, "OAUTHBEARER")
    del given["kafka_token_file"]
    given["kafka_token_command"] = f"{shutil.which('cat')} {papers.token}"
    assert asyncio.run(topics.journal_partitions(chosen(guarded["CLOSED"], given))) is None


def refused_by_kafka(settings) -> str:
    with warnings.catch_warnings():
        # The client leaves the socket of a refused connection to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(TopicsError) as caught:
            asyncio.run(topics.journal_partitions(settings))
        gc.collect()
    (line,) = caught.value.lines
    assert PASSWORD not in line
    return line


@pytest.mark.services
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_one_line(guarded, papers, mechanism):
    given = sasl(papers, mechanism) | {"kafka_password_file": papers.wrong}
    line = refused_by_kafka(chosen(guarded["CLOSED"], given))
    assert "refuses the credentials" in line
    assert "guess" not in line
    assert "AGENTTRUST_KAFKA_PASSWORD_FILE" in line


@pytest.mark.services
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("/no/such/program", "no such file or directory"),
        ("false", "status 1"),
        ("true", "is no token"),
        ("echo two words", "is no token"),
    ],
)
def test_no_token_is_one_line(guarded, papers, command, told):
    given = sasl(papers, "OAUTHBEARER", "SASL_PLAINTEXT")
    del given["kafka_token_file"]
    line = refused_by_kafka(chosen(guarded["OPEN"], given | {"kafka_token_command": command}))
    assert told in line
    assert "AGENTTRUST_KAFKA_TOKEN_COMMAND" in line
    assert "two words" not in line


@pytest.mark.services
def test_a_token_that_is_over_is_refused_and_never_told(guarded, papers):
    old = unsecured_token(life=-60)
    given = sasl(papers, "OAUTHBEARER") | {"kafka_token_file": papers.file("old", old)}
    line = refused_by_kafka(chosen(guarded["CLOSED"], given))
    assert "refuses the credentials" in line
    assert old not in line


@pytest.mark.services
def test_a_foreign_authority_is_not_trusted(guarded, papers):
    given = tls(papers) | {"kafka_ca": papers.other_ca}
    line = refused_by_kafka(chosen(guarded["TLS"], given))
    assert "certificate" in line
    assert "AGENTTRUST_KAFKA_CA" in line


@pytest.mark.services
@pytest.mark.parametrize(
    ("listener", "spoken"), [("PLAINTEXT", "SSL"), ("TLS", "PLAINTEXT"), ("CLOSED", "SSL")]
)
def test_another_protocol_than_the_listeners_is_one_line(guarded, papers, listener, spoken):
    given = tls(papers) if spoken == "SSL" else {}
    line = refused_by_kafka(chosen(guarded[listener], given))
    assert "AGENTTRUST_KAFKA_SECURITY_PROTOCOL" in line


@pytest.mark.services
def test_a_mechanism_that_the_listener_does_not_have_is_one_line(guarded, papers):
    line = refused_by_kafka(
        chosen(guarded["PLAIN"], sasl(papers, "SCRAM-SHA-256", "SASL_PLAINTEXT"))
    )
    assert "it does not offer SCRAM-SHA-256" in line
    assert "AGENTTRUST_KAFKA_SASL_MECHANISM" in line


# -- everything that connects ------------------------------------------------------------------


def closed(deployment: Deployment) -> int:
    from streams.events import read

    labels = (read(r.headers, r.value) for r in deployment.read(deployment.plan.labels.name))
    return sum(event.body.phase == "final" for event in labels)


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["SSL", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_every_client_uses_the_settings(guarded, papers, guarded_redis, tmp_path, kind):
    """Topics, sink of gateway and send, workers with Faust's consumer, watch: span to event."""
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "desk.yaml").write_text(CONTRACT)
    listener, given = "MUTUAL", {}
    if kind == "SSL":
        chain, key = papers.client
        given = tls(papers) | {"kafka_client_cert": chain, "kafka_client_key": key}
    else:
        listener, given = "CLOSED", sasl(papers, kind)
    settings = chosen(
        guarded[listener],
        given | guarded_redis,
        contracts=contracts,
        settle_delay="500ms",
        idle_timeout="4s",
        session_timeout="6s",
    )
    deployment = Deployment(settings, tmp_path)
    deployment.create()

    async def write() -> None:
        sink = KafkaSink(settings)
        await sink.write(deployment.plan.spans.name, otlp_trace("a" * 32, ["ticket.purge"]))
        await sink.close()

    asyncio.run(write())
    with deployment.worker("ingest,evaluate") as worker:
        watch = [sys.executable, "-m", "streams", "watch", "--json", "--from-start"]
        with (tmp_path / "events").open("wb") as out:
            watching = subprocess.Popen(
                watch, stdout=out, stderr=out, cwd=ROOT, env=deployment.environment()
            )
        try:
            seen = tmp_path / "events"
            wait_for(lambda: '"phase":"final"' in seen.read_text(), "a final label", 90)
        finally:
            watching.terminate()
            watching.wait(20)
        assert worker.stop() == 0
    assert "POLICY_TOOL_FORBIDDEN" in seen.read_text()
    told = worker.said + seen.read_text()
    for secret in (PASSWORD, papers.token.read_text().strip(), REDIS_PASSWORD):
        assert secret not in told


# -- Redis -----------------------------------------------------------------------------------

REDIS_PASSWORD = "r3dis=word"


def _rights() -> tuple[list[str], list[str]]:
    """What docs/operations.md says that a user needs; and on a Redis Cluster."""
    told = (ROOT / "docs" / "operations.md").read_text()
    line = re.search(r"ACL SETUSER agenttrust on >PASSWORD (.+)", told)
    more = re.search(r"A Redis Cluster asks for\s+`([^`]+)` as well", told)
    assert line, "the rights are not in docs/operations.md"
    assert more, "those on a Redis Cluster are not in docs/operations.md"
    rights = line[1].replace("agenttrust:", "sec*:").split()
    return rights, rights + more[1].split()


RIGHTS, CLUSTER_RIGHTS = _rights()


def user_options(papers: Papers, port: int, rights: list[str]) -> tuple[str, ...]:
    """TLS at `port`, and a user with these rights and no other."""
    chain, key = papers.server
    return (
        *("--tls-port", str(port), "--tls-cert-file", str(chain), "--tls-key-file", str(key)),
        *("--tls-ca-cert-file", str(papers.ca), "--tls-auth-clients", "optional"),
        *("--user", "agenttrust", "on", f">{REDIS_PASSWORD}", *rights),
    )


@pytest.fixture(scope="module")
def guarded_redis(papers, tmp_path_factory) -> Iterator[dict[str, object]]:
    """Settings for a Redis that speaks TLS alone and knows one user."""
    secure = free_port()
    folder = tmp_path_factory.mktemp("guarded-redis")
    options = (*user_options(papers, secure, RIGHTS), "--user", "default", "off")
    file = papers.file("redis-password", REDIS_PASSWORD)
    with start_redis_server(free_port(), folder, *options):
        yield {
            "redis_url": f"rediss://127.0.0.1:{secure}/0",
            "redis_ca": papers.ca,
            "redis_username": "agenttrust",
            "redis_password_file": file,
        }


async def opened(given: dict[str, object]) -> list[str]:
    settings = load(**given)
    store = await RedisStore.connect(
        settings.redis_url,
        prefix="sec",
        partitions=1,
        ttl=9,
        patience=0.1,
        access=settings.redis_args(),
    )
    try:
        await store.load(0, {})
        return await store.check()
    finally:
        await store.close()


async def worked(url: str) -> None:
    """Everything that workers ask of a Redis. Raises when it refuses something."""
    options = {"prefix": "sec", "patience": 0.05}
    store = await RedisStore.connect(url, partitions=1, ttl=9, **options)
    try:
        assert not [told for told in await store.check() if "cannot tell" in told]
        await store.watermark(0)
        await store.partitions()
        first, second, third = (Watermark(0, n, 0, n) for n in (1, 2, 3))
        one, other = "a" * 32, "b" * 32
        saved = {t: Saving(b"h", {"f": b"1"}, {"c": b"2"}, due=5) for t in (one, other)}
        await store.save(0, None, first, saved)
        await store.load(0, {one: Wanted(("f",), content=True), other: Wanted(("f",))})
        await store.save(0, first, second, {one: Saving(b"h", due=None)})
        await store.save(0, second, third, {one: Saving(None)})
        assert list(await store.due(0, 9, 9)) == [other]
        await store.reset(0, watermark=True)
        with redis.Redis.from_url(url) as left:
            assert list(left.scan_iter("{sec:*")) == []
        parse = options | {"failures": FAILURES}
        cache = ReadingCache(store.client, ttl=9, **parse)
        await cache.put({"k": b"v"})
        assert await cache.get(["k"]) == [b"v"]
        limits = Limits(tokens_minute=100)
        budget = Budget(store.client, everyone=limits, service=Limits(), **parse)
        taken = await budget.take("desk", 10, None)
        assert not isinstance(taken, str)
        await budget.settle(taken, 5, None)
    finally:
        await store.close()


@pytest.mark.services
def test_the_rights_of_a_redis_user_suffice_and_none_is_too_many(tmp_path):
    with (
        start_redis_server(free_port(), tmp_path) as server,
        redis.Redis(port=server.port) as admin,
    ):
        url = f"redis://agenttrust:{REDIS_PASSWORD}@127.0.0.1:{server.port}/0"

        def allow(rights: list[str]) -> None:
            user = ("agenttrust", "reset", "on", f">{REDIS_PASSWORD}", *rights)
            admin.execute_command("ACL", "SETUSER", *user)

        allow(RIGHTS)
        asyncio.run(worked(url))
        idle = []
        for right in RIGHTS:
            admin.flushall()
            allow([other for other in RIGHTS if other != right])
            try:
                asyncio.run(worked(url))
            except (RedisError, AssertionError):
                continue
            idle.append(right)
        assert idle == []


@pytest.mark.services
def test_redis_with_tls_and_a_user(guarded_redis, papers):
    asyncio.run(opened(guarded_redis))
    plain = {k: v for k, v in guarded_redis.items() if k in {"redis_url", "redis_ca"}}
    url = str(plain["redis_url"]).replace("//", f"//agenttrust:{REDIS_PASSWORD}@")
    asyncio.run(opened(plain | {"redis_url": url}))


@pytest.mark.services
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"redis_password_file": "wrong"}, "AGENTTRUST_REDIS_PASSWORD_FILE"),
        ({"redis_username": None, "redis_password_file": None}, "AGENTTRUST_REDIS_USERNAME"),
        ({"redis_ca": "other_ca"}, "AGENTTRUST_REDIS_CA"),
    ],
)
def test_what_redis_refuses_is_one_line_at_once(guarded_redis, papers, changed, told):
    given = guarded_redis | {k: getattr(papers, v) if v else None for k, v in changed.items()}
    with pytest.raises(StoreRefused) as caught:
        asyncio.run(opened(given))
    (line,) = caught.value.lines
    assert told in line
    assert REDIS_PASSWORD not in line


@pytest.mark.services
def test_a_guarded_redis_cluster(papers, tmp_path):
    secure, bus = free_port(), free_port()
    options = (
        *user_options(papers, secure, CLUSTER_RIGHTS),
        *("--cluster-enabled", "yes", "--cluster-port", str(bus), "--tls-cluster", "yes"),
    )
    with start_redis_server(free_port(), tmp_path, *options) as server:
        with redis.Redis(port=server.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_for(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster to form")
            client.execute_command("ACL", "SETUSER", "default", "off")
        given = {
            "redis_url": f"rediss://127.0.0.1:{secure}/0",
            "redis_ca": papers.ca,
            "redis_username": "agenttrust",
            "redis_password": REDIS_PASSWORD,
        }
        assert asyncio.run(opened(given)) == [
            "appendonly is off: a restart of the Redis means folding the journal again"
        ]


# -- settings that do not fit ------------------------------------------------------------------


def refused(**given: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(**given)
    (line,) = caught.value.lines
    return line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"kafka_ca": "CA"},
            "AGENTTRUST_KAFKA_CA=CA: needs AGENTTRUST_KAFKA_SECURITY_PROTOCOL=SSL or SASL_SSL",
        ),
        (
            {"kafka_username": "alice"},
            (
                "AGENTTRUST_KAFKA_USERNAME=alice: needs "
                "AGENTTRUST_KAFKA_SECURITY_PROTOCOL=SASL_SSL or SASL_PLAINTEXT"
            ),
        ),
        (
            {"kafka_security_protocol": "SASL_SSL"},
            (
                "AGENTTRUST_KAFKA_SASL_MECHANISM=(none): needed by "
                "AGENTTRUST_KAFKA_SECURITY_PROTOCOL=SASL_SSL"
            ),
        ),
        (
            {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"},
            "AGENTTRUST_KAFKA_USERNAME=(none): needed by AGENTTRUST_KAFKA_SASL_MECHANISM=PLAIN",
        ),
        (
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "PLAIN",
                "kafka_username": "alice",
            },
            (
                "AGENTTRUST_KAFKA_PASSWORD_FILE=(none): needed by "
                "AGENTTRUST_KAFKA_SASL_MECHANISM=PLAIN, or AGENTTRUST_KAFKA_PASSWORD"
            ),
        ),
        (
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_password": "hunter2",
            },
            (
                "AGENTTRUST_KAFKA_PASSWORD=***: has no use with "
                "AGENTTRUST_KAFKA_SASL_MECHANISM=OAUTHBEARER"
            ),
        ),
        (
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_token_command": "get-token 'hunter2",
            },
            "AGENTTRUST_KAFKA_TOKEN_COMMAND=***: a quote is not closed",
        ),
        (
            {"kafka_security_protocol": "SSL", "kafka_ca": "/no/such"},
            "AGENTTRUST_KAFKA_CA=/no/such: no such file or directory",
        ),
        (
            {"kafka_security_protocol": "SSL", "kafka_client_cert": "x"},
            "AGENTTRUST_KAFKA_CLIENT_CERT=x: needs AGENTTRUST_KAFKA_CLIENT_KEY",
        ),
        (
            {"redis_ca": "x"},
            "AGENTTRUST_REDIS_CA=x: needs a rediss:// URL in AGENTTRUST_REDIS_URL",
        ),
        (
            {"redis_url": "redis://:hunter2@h:1/0", "redis_password": "hunter3"},
            "AGENTTRUST_REDIS_PASSWORD=***: AGENTTRUST_REDIS_URL holds a password as well",
        ),
        (
            {"redis_username": "alice"},
            (
                "AGENTTRUST_REDIS_USERNAME=alice: needs AGENTTRUST_REDIS_PASSWORD_FILE or "
                "AGENTTRUST_REDIS_PASSWORD"
            ),
        ),
        (
            {"redis_password_file": "/no/such"},
            "AGENTTRUST_REDIS_PASSWORD_FILE=/no/such: no such file or directory",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(given, line):
    assert refused(**given) == line


def test_files_are_looked_into_before_anything_starts(papers):
    chain, key = papers.client
    ssl_ = {"kafka_security_protocol": "SSL"}
    assert refused(**ssl_, kafka_ca=key).startswith(f"AGENTTRUST_KAFKA_CA={key}: not PEM")
    other = papers.server[1]
    line = refused(**ssl_, kafka_ca=papers.ca, kafka_client_cert=chain, kafka_client_key=other)
    assert "no pair of certificate and unencrypted key" in line
    assert "it must hold one line" in refused(redis_password_file=papers.file("empty", ""))
    assert "it must hold one line" in refused(redis_password_file=papers.file("two", "a\nb\n"))


def test_an_encrypted_key_is_refused_and_nobody_is_asked(papers, monkeypatch):
    from cryptography.hazmat.primitives import serialization as s

    chain, key = papers.client
    private = s.load_pem_private_key(key.read_bytes(), None)
    locked = papers.folder / "locked.key"
    cipher = s.BestAvailableEncryption(b"hunter2")
    locked.write_bytes(private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, cipher))
    line = refused(kafka_security_protocol="SSL", kafka_client_cert=chain, kafka_client_key=locked)
    assert "no pair of certificate and unencrypted key" in line


def test_secrets_are_never_shown(papers):
    settings = load(
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="PLAIN",
        kafka_username="alice",
        kafka_password="hunter2",
        redis_password="hunter3",
    )
    told = repr(settings) + str(settings) + str(settings.shown()) + str(settings.model_dump())
    assert "hunter" not in told


def test_the_client_does_not_log_the_request_with_the_password(papers):
    load()
    assert not logging.getLogger("aiokafka.conn").isEnabledFor(logging.DEBUG)


def test_a_context_checks_certificate_and_name(papers):
    context = load(**tls(papers)).kafka_args()["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
