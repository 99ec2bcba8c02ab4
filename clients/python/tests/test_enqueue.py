"""The same promises through every driver, against a real Postgres."""

import asyncio
import functools
import inspect
import unittest
from decimal import Decimal
from unittest import mock

import world
from drainer import (
    DrainerError, Invalid, KeyTaken, LimitReached, NotAllowed, NotCommitted, NotInTransaction, OtherTenant, Outbox, Pending, RunClosed,
    TransactionAborted, UnknownTool,
)


class Stubborn(Outbox):
    """Asks in a transaction in which it was refused already."""

    def enqueue(self, connection, **asked):
        try:
            refused = super().enqueue(connection, **{**asked, "tool": "refused/OB006"})
        except LimitReached:
            return super().enqueue(connection, **asked)
        assert inspect.isawaitable(refused)
        return self._later(refused, connection, asked)

    async def _later(self, refused, connection, asked):
        try:
            await refused
        except LimitReached:
            return await super().enqueue(connection, **asked)


def sqlstates(error):
    """Those of an error and of all that it wraps."""
    while error is not None:
        yield getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        error = error.__cause__


class Enqueuing:
    kind = None

    def setUp(self):
        super().setUp()
        if lacking := world.missing(self.kind.needs):
            self.skipTest(f"{lacking} is not installed")
        self.agent = self.kind(self.run_id)

    def recorded(self):
        """How many rows of state, and of intents, this run has."""
        [counts] = self.admin(
            "SELECT (SELECT count(*) FROM agent_state WHERE run = %s), (SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s)",
            self.run_id, self.run_id)
        return tuple(counts)

    def test_an_intent_commits_with_the_state_and_once(self):
        first = self.agent.act()
        self.assertEqual((first.created, first.status, first.run), (True, "pending", self.run_id))
        self.assertRegex(first.key, "^idem_v1_[0-9a-f]{32}$")
        again = self.agent.act(payload={"amount": 1200})
        self.assertEqual((again.created, again.id, again.key), (False, first.id, first.key))
        self.assertEqual(self.recorded(), (2, 1))

    def test_a_rollback_leaves_no_row(self):
        def fail(intent):
            raise world.RolledBack

        with self.assertRaises(world.RolledBack):
            self.agent.act(fail)
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_step_with_another_amount_is_refused_and_nothing_of_it_commits(self):
        first = self.agent.act()
        with self.assertRaises(KeyTaken) as refused:
            self.agent.act(payload={"amount": 1300})
        told = refused.exception
        self.assertEqual((told.intent_id, told.key, told.status), (first.id, first.key, "pending"))
        self.assertIn("The first request stands.", refused.exception.for_model)
        self.assertNotIn("1300", str(refused.exception))
        self.assertEqual(self.recorded(), (1, 1))

    def test_each_refusal_has_its_error(self):
        self.admin("INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES (%s, 'cancelled', now())", self.run_id)
        with self.assertRaises(RunClosed):
            self.agent.act()
        self.agent.run_id += "-b"
        for code, error in (("OB003", Invalid), ("OB004", UnknownTool), ("OB005", OtherTenant), ("OB006", LimitReached)):
            with self.assertRaises(error) as refused:
                self.agent.act(tool=f"refused/{code}")  # by a trigger of this database
            self.assertEqual((str(refused.exception), refused.exception.hint), ("as told", "come back"))

    def test_a_login_without_the_role_is_told_it(self):
        with world.login("GRANT INSERT ON agent_state TO {0}; REVOKE outbox_agent FROM {0}", "GRANT outbox_agent TO {}"):
            with self.assertRaisesRegex(NotAllowed, "lack the role outbox_agent.*GRANT outbox_agent TO.*permission denied") as refused:
                self.agent.act()
        self.assertIn("42501", sqlstates(refused.exception.__cause__))
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_transaction_that_is_aborted_already_is_named(self):
        self.agent.box = Stubborn()
        with self.assertRaisesRegex(TransactionAborted, "earlier statement.*roll it back.*current transaction is aborted") as refused:
            self.agent.act()
        self.assertIn("25P02", sqlstates(refused.exception.__cause__))
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_statement_timeout_is_the_drivers_own_error_and_nothing_is_recorded(self):
        if self.kind is world.Django:
            world.Django.connection().close()
        with world.login("ALTER ROLE {} SET statement_timeout = '200ms'", "ALTER ROLE {} RESET statement_timeout"):
            with world.administrator() as twin:  # whose transaction is open, so that enqueue waits for it
                twin.execute("BEGIN")
                twin.execute("SELECT outbox.enqueue(%s, 'charge', 'parked/charge', 'invoice_442', '{}')", (self.run_id,))
                with self.assertRaises(Exception) as struck:
                    self.agent.act()
                twin.execute("ROLLBACK")
            self.assertNotIsInstance(struck.exception, DrainerError)
            self.assertIn("57014", sqlstates(struck.exception))
            self.assertEqual(self.recorded(), (0, 0))
        if self.kind is world.Django:
            world.Django.connection().close()
        self.assertTrue(self.agent.act().created)

    def test_without_a_transaction_nothing_is_recorded(self):
        with self.assertRaises(NotInTransaction):
            self.agent.act_without_transaction()
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_pool_is_refused(self):
        try:
            with self.assertRaises(NotInTransaction):
                self.agent.act_on_pool()
        except ImportError as missing:
            self.skipTest(str(missing))
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_cursor_stands_for_its_connection(self):
        self.assertTrue(self.agent.act_on_cursor().created)

    def test_a_payload_is_encoded_once_and_exactly(self):
        payload = {"n": 2**53 + 1, "price": Decimal("1200.50"), "half": 0.5, "text": "'%s $1 :p \\ é e\u0301 🚀", "none": None, "list": [1, {"x": True}]}
        intent = self.agent.act(payload=payload, headers={"traceparent": "00-1"})
        [[kind, text, traceparent]] = self.admin(
            "SELECT jsonb_typeof(payload), payload::text, headers->>'traceparent' FROM outbox.intent WHERE id = %s", intent.id)
        self.assertEqual((kind, traceparent), ("object", "00-1"))
        for written in ('"n": 9007199254740993', '"price": 1200.50', '"half": 0.5', "'%s $1 :p \\\\ é e\u0301 🚀", '"none": null'):
            self.assertIn(written, text)

    def test_waiting_in_the_enqueuing_transaction_is_refused(self):
        def wait(intent):
            with self.assertRaisesRegex(NotCommitted, "still open"):
                Outbox().wait(world.AGENT, intent, timeout=30)

        self.agent.act(wait)


for agent in world.AGENTS:
    globals()[f"Test{agent.__name__}"] = type(f"Test{agent.__name__}", (Enqueuing, world.Database), {"kind": agent})


class TestTheServersOwnRefusals(world.Database):
    """The others are raised by a trigger of this database, on every driver."""

    def test_each_has_its_error_and_says_what_to_do(self):
        if lacking := world.missing(world.Psycopg2.needs):
            self.skipTest(f"{lacking} is not installed")
        agent = world.Psycopg2(self.run_id)
        agent.act()
        with self.assertRaises(UnknownTool) as unknown:
            agent.act(tool="ok/atc")
        self.assertIn('Did you mean "ok/act"?', unknown.exception.hint)
        with mock.patch.object(world, "AGENT", world.TENANT):
            with self.assertRaises(OtherTenant) as taken:
                agent.act()
            self.assertIn("begin yours with your tenant's name", taken.exception.hint)
            agent.act(run="acme")
            with self.assertRaises(LimitReached) as reached:
                agent.act(run="acme", step="again")
            self.assertRegex(reached.exception.hint, "Try again in [0-9]+ s")


class TestWhatAnORMAborts(world.Database):
    """An ORM keeps its own account of a transaction, and sends nothing after an error."""

    def enqueue(self, connection):
        with self.assertRaisesRegex(TransactionAborted, "earlier statement") as refused:
            Outbox().enqueue(connection, run=self.run_id, step="s", tool="p/o", scope="b", payload={})
        self.assertIsNotNone(refused.exception.__cause__)
        self.assertNotIn("parameters", str(refused.exception))  # of the earlier statement, which are the program's own

    def test_a_session_after_a_failed_flush(self):
        if lacking := world.missing(world.SQLAlchemySession.needs):
            self.skipTest(f"{lacking} is not installed")
        from sqlalchemy import Column, Text, exc, orm

        class State(orm.declarative_base()):
            __tablename__ = "agent_state"
            run = Column(Text, primary_key=True)

        with orm.Session(world.SQLAlchemySession(self.run_id).engine()) as session:
            session.add(State(run="a\x00b"))
            with self.assertRaises((exc.DBAPIError, exc.StatementError, ValueError)):
                session.flush()
            self.enqueue(session)

    def test_an_atomic_block_that_has_to_roll_back(self):
        if lacking := world.missing(world.Django.needs):
            self.skipTest(f"{lacking} is not installed")
        connection = world.Django.connection()
        from django.db import transaction

        with self.assertRaises(world.RolledBack), transaction.atomic():
            try:
                with transaction.atomic(savepoint=False):
                    raise world.RolledBack
            except world.RolledBack:
                self.enqueue(connection)
                raise


class TestStateThatASessionHolds(world.Database):
    """An ORM may keep back the agent's state until the commit, and an outbox ask for it to be written first."""

    def setUp(self):
        super().setUp()
        if lacking := world.missing(("sqlalchemy", "psycopg2", "asyncpg", "greenlet")):
            self.skipTest(f"{lacking} is not installed")
        from sqlalchemy import Column, Text, orm

        class State(orm.declarative_base()):
            __tablename__ = "agent_state"
            run = Column(Text, primary_key=True)

        self.state = State(run=self.run_id)
        self.admin("INSERT INTO outbox.setting (name, value) VALUES ('require_state', 'error')")
        self.addCleanup(self.admin, "DELETE FROM outbox.setting WHERE name = 'require_state'")

    def test_it_is_written_before_the_intent(self):
        from sqlalchemy.orm import Session

        agent = world.SQLAlchemySession(self.run_id)
        with Session(agent.engine()) as session, session.begin():
            session.add(self.state)
            self.assertTrue(agent.box.enqueue(session, **agent.asked()).created)

    def test_it_is_written_before_the_intent_by_an_asynchronous_session(self):
        async def enqueued():
            from sqlalchemy.ext.asyncio import AsyncSession

            agent = world.SQLAlchemyAsyncSession(self.run_id)
            async with AsyncSession(agent.engine()) as session, session.begin():
                session.add(self.state)
                return await agent.box.enqueue(session, **agent.asked())

        self.assertTrue(asyncio.run(enqueued()).created)


class TestOtherPlaceholders(world.Database):
    def test_a_connection_whose_cursors_take_numbered_values(self):
        if lacking := world.missing(("psycopg",)):
            self.skipTest(f"{lacking} is not installed")
        import psycopg

        if not hasattr(psycopg, "RawCursor"):
            self.skipTest("psycopg has it from version 3.2 on")
        asked = world.Psycopg(self.run_id).asked()
        with psycopg.connect(world.AGENT, cursor_factory=psycopg.RawCursor) as connection:
            intent = Outbox().enqueue(connection, **asked)
        connect = functools.partial(psycopg.connect, world.AGENT, cursor_factory=psycopg.RawCursor)
        self.assertIsInstance(Outbox().wait(connect, intent, timeout=0.5), Pending)

        async def again():
            async with await psycopg.AsyncConnection.connect(world.AGENT, cursor_factory=psycopg.AsyncRawCursor) as connection:
                return await Outbox().enqueue(connection, **asked)

        self.assertEqual(asyncio.run(again()).id, intent.id)


class TestOtherThings(unittest.TestCase):
    def test_what_is_no_connection_is_named(self):
        with self.assertRaisesRegex(TypeError, "builtins.object is no connection"):
            Outbox().enqueue(object(), run="r", step="s", tool="p/o", scope="b", payload={})


if __name__ == "__main__":
    unittest.main()
