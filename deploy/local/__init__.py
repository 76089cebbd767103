"""Apache Kafka and Redis on this machine, without a container engine.

Kafka runs from the jars of Maven Central with plain Java, as one KRaft node or several; Redis is the
`redis-server` on the path. Each listens on a free loopback port, keeps its files in a folder that
the caller gives, and ends with the process that started it.

    python -m deploy.local              # both, until Ctrl-C; prints the settings to use
    python -m deploy.local --fetch      # only the jars, into the cache

In Python: `deploy.local.kafka.Kafka` and `deploy.local.redis.RedisServer`, context managers both.
"""
