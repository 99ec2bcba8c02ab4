"""The database that the tests are given, and one agent for each driver."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import time
import unittest
import uuid
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drainer import Outbox  # noqa: E402

AGENT = os.environ.get("DRAINER_TEST_AGENT", "")  # a login that is an outbox_agent and no more
TENANT = os.environ.get("DRAINER_TEST_TENANT", "")  # another agent's, of a tenant that may have one intent due
POOLER = os.environ.get("DRAINER_TEST_POOLER", "")  # that login's way through a pooler of one session, if there is one
ADMIN = os.environ.get("DRAINER_TEST_ADMIN", "")
STATE = "INSERT INTO agent_state (run) VALUES ({})"
PATIENCE = 60  # seconds, on a busy machine


class Database(unittest.TestCase):
    """A test with a database."""

    def setUp(self):
        if not AGENT:
            self.skipTest("no database here: run these tests with `make clients-test`")
        self.run_id = f"run-{uuid.uuid4()}"

    def eventually(self, holds):
        """Asks, with a pause in between, until it is told something true, and returns that."""
        until = time.monotonic() + PATIENCE
        while not (said := holds()):
            if time.monotonic() > until:
                self.fail("it does not come true")
            time.sleep(0.02)
        return said

    def admin(self, statement, *values):
        with administrator() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else None


@contextlib.contextmanager
def administrator():
    driver = importlib.import_module("psycopg2" if installed("psycopg2") else "psycopg")
    connection = driver.connect(ADMIN)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


@contextlib.contextmanager
def login(changed, back):
    """Has the agents' login changed for a while. New connections have it; Django's is one that stays."""
    name = urlsplit(AGENT).username
    with administrator() as cursor:
        cursor.execute(changed.format(name))
        try:
            yield
        finally:
            cursor.execute(back.format(name))


def installed(module):
    return importlib.util.find_spec(module) is not None


class RolledBack(Exception):
    """The agent's own reason not to commit."""


class Agent:
    """Writes its state and enqueues in one transaction. Subclasses speak through one driver each."""

    needs: tuple[str, ...] = ()
    box = Outbox()

    def __init__(self, run_id):
        self.run_id = run_id

    def act(self, inside=lambda intent: None, **changed):
        """inside is called with the intent before the commit."""
        raise NotImplementedError

    def act_without_transaction(self):
        raise NotImplementedError

    def act_on_pool(self):
        raise NotImplementedError

    def act_on_cursor(self):
        raise unittest.SkipTest("this driver's cursors are not handed to anyone")

    def asked(self, **changed):
        return {
            "run": self.run_id, "step": "charge", "tool": "parked/charge", "scope": "invoice_442",
            "payload": {"amount": 1200}, **changed,
        }


class Psycopg(Agent):
    needs = ("psycopg",)

    def act(self, inside=lambda intent: None, **changed):
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(AGENT, row_factory=dict_row) as connection, connection.transaction():
            connection.execute(STATE.format("%s"), (self.run_id,))
            intent = self.box.enqueue(connection, **self.asked(**changed))
            inside(intent)
        return intent

    def act_without_transaction(self):
        import psycopg

        with psycopg.connect(AGENT, autocommit=True) as connection:
            self.box.enqueue(connection, **self.asked())

    def act_on_pool(self):
        pool = importlib.import_module("psycopg_pool").ConnectionPool(AGENT, open=False)
        self.box.enqueue(pool, **self.asked())

    def act_on_cursor(self):
        import psycopg

        with psycopg.connect(AGENT) as connection:
            return self.box.enqueue(connection.cursor(), **self.asked())


class Async(Agent):
    def act(self, inside=lambda intent: None, **changed):
        return asyncio.run(self.aact(inside, **changed))

    def act_without_transaction(self):
        asyncio.run(self.awithout_transaction())

    def act_on_pool(self):
        asyncio.run(self.aon_pool())


class PsycopgAsync(Async):
    needs = ("psycopg",)

    async def aact(self, inside, **changed):
        import psycopg

        async with await psycopg.AsyncConnection.connect(AGENT) as connection:
            async with connection.transaction():
                await connection.execute(STATE.format("%s"), (self.run_id,))
                intent = await self.box.enqueue(connection, **self.asked(**changed))
                await asyncio.to_thread(inside, intent)
        return intent

    async def awithout_transaction(self):
        import psycopg

        async with await psycopg.AsyncConnection.connect(AGENT, autocommit=True) as connection:
            await self.box.enqueue(connection, **self.asked())

    async def aon_pool(self):
        pool = importlib.import_module("psycopg_pool").AsyncConnectionPool(AGENT, open=False)
        await self.box.enqueue(pool, **self.asked())


class Psycopg2(Agent):
    needs = ("psycopg2",)

    def act(self, inside=lambda intent: None, **changed):
        import psycopg2
        from psycopg2.extras import RealDictCursor

        connection = psycopg2.connect(AGENT, cursor_factory=RealDictCursor)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(STATE.format("%s"), (self.run_id,))
                intent = self.box.enqueue(connection, **self.asked(**changed))
                inside(intent)
        finally:
            connection.close()
        return intent

    def act_without_transaction(self):
        import psycopg2

        connection = psycopg2.connect(AGENT)
        connection.autocommit = True
        with contextlib.closing(connection):
            self.box.enqueue(connection, **self.asked())

    def act_on_pool(self):
        from psycopg2.pool import ThreadedConnectionPool

        self.box.enqueue(ThreadedConnectionPool(0, 1, AGENT), **self.asked())

    def act_on_cursor(self):
        import psycopg2

        with contextlib.closing(psycopg2.connect(AGENT)) as connection, connection, connection.cursor() as cursor:
            return self.box.enqueue(cursor, **self.asked())


class Asyncpg(Async):
    needs = ("asyncpg",)

    async def connect(self):
        import asyncpg

        connection = await asyncpg.connect(AGENT)
        # Many programs do this; a client that relied on the codec would encode twice.
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=__import__("json").dumps, decoder=__import__("json").loads)
        return connection

    async def aact(self, inside, **changed):
        connection = await self.connect()
        try:
            async with connection.transaction():
                await connection.execute(STATE.format("$1"), self.run_id)
                intent = await self.box.enqueue(connection, **self.asked(**changed))
                await asyncio.to_thread(inside, intent)
        finally:
            await connection.close()
        return intent

    async def awithout_transaction(self):
        connection = await self.connect()
        try:
            await self.box.enqueue(connection, **self.asked())
        finally:
            await connection.close()

    async def aon_pool(self):
        import asyncpg

        async with asyncpg.create_pool(AGENT, min_size=1, max_size=1) as pool:
            await self.box.enqueue(pool, **self.asked())


class AsyncpgPooled(Asyncpg):
    """A connection taken from a pool is a connection."""

    async def aact(self, inside, **changed):
        import asyncpg

        async with asyncpg.create_pool(AGENT, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            async with connection.transaction():
                await connection.execute(STATE.format("$1"), self.run_id)
                intent = await self.box.enqueue(connection, **self.asked(**changed))
                await asyncio.to_thread(inside, intent)
        return intent


class SQLAlchemy(Agent):
    dialect = "psycopg2"
    needs = ("sqlalchemy", "psycopg2")

    def engine(self, **options):
        import sqlalchemy

        return sqlalchemy.create_engine(AGENT.replace("postgres://", f"postgresql+{self.dialect}://"), future=True,
                                        poolclass=sqlalchemy.pool.NullPool, **options)

    def act_on_pool(self):
        self.box.enqueue(self.engine(), **self.asked())


class SQLAlchemyConnection(SQLAlchemy):
    def act(self, inside=lambda intent: None, **changed):
        from sqlalchemy import text

        with self.engine().begin() as connection:
            connection.execute(text(STATE.format(":run")), {"run": self.run_id})
            intent = self.box.enqueue(connection, **self.asked(**changed))
            inside(intent)
        return intent

    def act_without_transaction(self):
        with self.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            self.box.enqueue(connection, **self.asked())


class SQLAlchemySession(SQLAlchemy):
    def act(self, inside=lambda intent: None, **changed):
        from sqlalchemy import text
        from sqlalchemy.orm import Session

        with Session(self.engine()) as session, session.begin():
            session.execute(text(STATE.format(":run")), {"run": self.run_id})
            intent = self.box.enqueue(session, **self.asked(**changed))
            inside(intent)
        return intent

    def act_without_transaction(self):
        from sqlalchemy.orm import Session

        with Session(self.engine(isolation_level="AUTOCOMMIT")) as session:
            self.box.enqueue(session, **self.asked())


class SQLAlchemySessionOverPsycopg(SQLAlchemySession):
    dialect = "psycopg"
    needs = ("sqlalchemy.dialects.postgresql.psycopg", "psycopg")


class SQLAlchemyAsyncSession(Async):
    dialect = "asyncpg"
    needs = ("sqlalchemy", "asyncpg", "greenlet")

    def engine(self, **options):
        import sqlalchemy
        from sqlalchemy.ext.asyncio import create_async_engine

        url = AGENT.replace("postgres://", f"postgresql+{self.dialect}://").replace("sslmode=", "ssl=" if self.dialect == "asyncpg" else "sslmode=")
        return create_async_engine(url, poolclass=sqlalchemy.pool.NullPool, **options)

    async def aact(self, inside, **changed):
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(self.engine()) as session, session.begin():
            await session.execute(text(STATE.format(":run")), {"run": self.run_id})
            intent = await self.box.enqueue(session, **self.asked(**changed))
            await asyncio.to_thread(inside, intent)
        return intent

    async def awithout_transaction(self):
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(self.engine(isolation_level="AUTOCOMMIT")) as session:
            await self.box.enqueue(session, **self.asked())

    async def aon_pool(self):
        await self.box.enqueue(self.engine(), **self.asked())


class SQLAlchemyAsyncConnection(SQLAlchemyAsyncSession):
    async def aact(self, inside, **changed):
        from sqlalchemy import text

        async with self.engine().begin() as connection:
            await connection.execute(text(STATE.format(":run")), {"run": self.run_id})
            intent = await self.box.enqueue(connection, **self.asked(**changed))
            await asyncio.to_thread(inside, intent)
        return intent

    async def awithout_transaction(self):
        async with self.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            await self.box.enqueue(connection, **self.asked())


class SQLAlchemyAsyncSessionOverPsycopg(SQLAlchemyAsyncSession):
    dialect = "psycopg"
    needs = ("sqlalchemy.dialects.postgresql.psycopg", "psycopg", "greenlet")


class Django(Agent):
    needs = ("django",)

    @staticmethod
    def connection():
        import django
        from django.conf import settings

        if not settings.configured:
            at = urlsplit(AGENT)
            settings.configure(DATABASES={"default": {
                "ENGINE": "django.db.backends.postgresql", "NAME": at.path[1:], "USER": at.username,
                "PASSWORD": at.password, "HOST": at.hostname, "PORT": at.port,
            }}, INSTALLED_APPS=[], USE_TZ=True)
            django.setup()
        from django.db import connection

        return connection

    def act(self, inside=lambda intent: None, **changed):
        connection = self.connection()
        from django.db import transaction

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(STATE.format("%s"), [self.run_id])
            intent = self.box.enqueue(connection, **self.asked(**changed))
            inside(intent)
        return intent

    def act_without_transaction(self):
        self.box.enqueue(self.connection(), **self.asked())

    def act_on_pool(self):
        raise unittest.SkipTest("Django hands out no pool")


AGENTS = [
    Psycopg, PsycopgAsync, Psycopg2, Asyncpg, AsyncpgPooled, SQLAlchemyConnection, SQLAlchemySession,
    SQLAlchemySessionOverPsycopg, SQLAlchemyAsyncSession, SQLAlchemyAsyncConnection, SQLAlchemyAsyncSessionOverPsycopg, Django,
]


def missing(needs):
    for module in needs:
        try:
            importlib.import_module(module)
        except ImportError:
            if os.environ.get("CLIENTS_STRICT") and "." not in module:  # a part of SQLAlchemy depends on its version
                raise AssertionError(f"{module} is not installed, and CLIENTS_STRICT is set") from None
            return module
    return None
