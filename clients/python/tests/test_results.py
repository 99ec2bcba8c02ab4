"""Results, from a daemon that drains and from a database that is taken away."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import importlib
import multiprocessing
import os
import socket
import sys
import threading
import unittest
from unittest import mock
from urllib.parse import urlsplit

import world
from drainer import (
    Cancelled, Completed, DrainerError, Failed, NotAllowed, NotCommitted, Outbox, Pending, Undone, Unknown, results,
)

from world import PATIENCE

box = Outbox()

DRIVERS = ("psycopg", "psycopg2")  # of which the tests, too, need one to look into the database
WITH_ASYNCPG = (*DRIVERS, "asyncpg")


def only(driver):
    """Hides the other drivers, of which a wait takes the first."""
    return mock.patch.dict(sys.modules, {name: None for name in WITH_ASYNCPG if name != driver})


def wait_in_child(number):
    gc.collect()  # what is left of the parent's connection is finalized here, if it ever is
    sys.exit(not isinstance(box.wait(world.AGENT, number, timeout=PATIENCE), Completed))


class Results(world.Database):
    def setUp(self):
        super().setUp()
        if lacking := world.missing(("psycopg2",)):
            self.skipTest(f"{lacking} is not installed")
        self.agent = world.Psycopg2(self.run_id)
        results._waiters.clear()  # each test has a connection of its own

    def settle(self, intent, status):
        """Has the last word as a rollback would."""
        self.admin("DELETE FROM outbox.queue WHERE intent_id = %s", intent.id)
        self.admin(
            "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref, response, started_at)"
            " SELECT %s, coalesce(max(attempt), 0) + 1, 'saga', 'test', %s, 'ref-1', '{\"n\": 1}', now()"
            " FROM outbox.attempt WHERE intent_id = %s", intent.id, status, intent.id)

    def waits(self):
        return len(results._waiters[world.AGENT]._waits) if world.AGENT in results._waiters else 0

    def backends(self):
        """The connections that wait for this login."""
        return {pid for (pid,) in self.admin(
            "SELECT pid FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await(%%' AND pid <> pg_backend_pid()",
            urlsplit(world.AGENT).username)}


class TestAnswers(Results):
    def test_completed_has_the_response(self):
        intent = self.agent.act(tool="ok/act")
        done = box.wait(world.AGENT, intent, timeout=PATIENCE)
        self.assertEqual(done, Completed(intent.id, f"ref-{intent.key}", {"id": f"ref-{intent.key}", "amount": 1200}))
        self.assertEqual(asyncio.run(box.result(world.AGENT, intent.id, timeout=PATIENCE)), done)
        self.assertEqual(self.agent.act(tool="ok/act").status, "completed")

    def test_a_loop_that_asks_three_times_has_one_effect(self):
        answers = [box.wait(world.AGENT, self.agent.act(tool="ok/act"), timeout=PATIENCE) for _ in range(3)]
        self.assertEqual(len(set(answer.provider_ref for answer in answers)), 1)
        self.assertEqual(self.admin("SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s", self.run_id)[0][0], 1)

    def test_failed_and_unknown_are_two_answers(self):
        with self.assertRaises(Failed) as failed:
            box.wait(world.AGENT, self.agent.act(tool="refuse/act"), timeout=PATIENCE)
        self.assertIn("not done", failed.exception.for_model)
        with self.assertRaises(Unknown) as unknown:
            asyncio.run(box.result(world.AGENT, self.agent.act(tool="cut/act"), timeout=PATIENCE))
        self.assertIn("not known", unknown.exception.for_model)

    def test_what_operators_and_rollbacks_decide(self):
        for status, error in (("cancelled", Cancelled), ("compensated", Undone), ("compensation_failed", Undone)):
            intent = self.agent.act(step=status)
            self.settle(intent, status)
            with self.assertRaises(error) as settled:
                box.wait(world.AGENT, intent, timeout=PATIENCE)
            self.assertEqual((settled.exception.status, settled.exception.intent_id), (status, intent.id))

    def test_a_timeout_is_pending_and_no_failure(self):
        intent = self.agent.act()
        self.assertEqual(box.wait(world.AGENT, intent, timeout=0.3), Pending(intent.id, "pending"))
        self.assertEqual(asyncio.run(box.result(world.AGENT, intent, timeout=0.3)), Pending(intent.id, "pending"))
        self.assertEqual(results._waiters[world.AGENT]._waits, set())

    def test_a_wait_may_be_endless(self):
        intent = self.agent.act()
        self.settle(intent, "completed")
        self.assertEqual(box.wait(world.AGENT, intent, timeout=float("inf")).status, "completed")
        self.assertEqual(asyncio.run(box.result(world.AGENT, intent, timeout=float("inf"))).status, "completed")

    def test_what_was_rolled_back_is_told_at_once(self):
        kept = []

        def fail(intent):
            kept.append(intent)
            raise world.RolledBack

        with self.assertRaises(world.RolledBack):
            self.agent.act(fail)
        with self.assertRaisesRegex(NotCommitted, "rolled back"):
            box.wait(world.AGENT, kept[0], timeout=PATIENCE)
        with self.assertRaisesRegex(NotCommitted, "not there"):
            box.wait(world.AGENT, kept[0].id, timeout=PATIENCE)

    def test_a_wait_inside_a_transaction_that_repeats_an_intent_is_refused(self):
        first = self.agent.act()
        again = []

        def inside(intent):
            again.append(intent)
            with self.assertRaisesRegex(NotCommitted, "still open"):
                box.wait(world.AGENT, intent, timeout=PATIENCE)

        self.agent.act(inside)
        self.assertEqual((again[0].id, again[0].created), (first.id, False))
        self.assertEqual(box.wait(world.AGENT, again[0], timeout=0.3), Pending(first.id))
        self.settle(first, "completed")
        self.agent.act(lambda intent: self.assertEqual(box.wait(world.AGENT, intent, timeout=PATIENCE).status, "completed"))

    def test_a_wait_in_an_event_loop_is_refused(self):
        async def mistaken():
            box.wait(world.AGENT, 1)

        with self.assertRaisesRegex(DrainerError, "await box.result"):
            asyncio.run(mistaken())

    def test_what_a_database_cannot_be_asked_for_ends_no_other_wait(self):
        intent = self.agent.act()
        waiting = results.begin(world.AGENT, intent.id, None)
        for wrong in ("5", None, 0, 2**63):
            with self.assertRaisesRegex(TypeError, "pass the Intent"):
                box.wait(world.AGENT, wrong, timeout=PATIENCE)
        self.settle(intent, "completed")
        self.assertEqual(waiting.future.result(PATIENCE).status, "completed")

    def test_a_response_that_python_cannot_parse_is_text_and_ends_no_other_wait(self):
        # Python 3.13 parses what is nested deeper than 3.11 does.
        responses = {"deep": "[" * 4000 + "]" * 4000, "digits": "9" * 5000, "other": '{"n": 1}'}
        waits = {}
        for step, response in responses.items():
            intent = self.agent.act(step=step)
            self.settle(intent, "completed")
            self.admin("UPDATE outbox.attempt SET response = CAST(%s AS jsonb) WHERE intent_id = %s", response, intent.id)
            waits[step] = results.begin(world.AGENT, intent.id, None)
        answers = {step: waiting.future.result(PATIENCE).response for step, waiting in waits.items()}
        self.assertIn(type(answers.pop("deep")), (str, list))
        self.assertEqual(answers, {"digits": responses["digits"], "other": {"n": 1}})


class TestErrors(Results):
    def test_what_cannot_pass_is_raised_and_not_waited_for(self):
        with self.assertRaisesRegex(Exception, "password|authentication"):
            box.wait(world.AGENT.replace(urlsplit(world.AGENT).password, "wrong"), 1, timeout=PATIENCE)

    def test_each_wait_raises_an_error_of_its_own(self):
        lost = ValueError("no such database")

        def connect():
            raise lost

        waits = [results.begin(connect, number, None) for number in (1, 2)]
        errors = [waiting.future.exception(PATIENCE) for waiting in waits]
        for error in errors:
            self.assertIsInstance(error, DrainerError)
            self.assertIn("ValueError: no such database", str(error))
            self.assertIs(error.__cause__, lost)
        self.assertIsNot(*errors)

    def test_what_no_future_can_hold_is_raised_too(self):
        for raised in (StopIteration("nothing left"), asyncio.CancelledError(), SystemExit("no database is configured")):
            def connect():
                raise raised

            with self.subTest(type(raised).__name__):
                with self.assertRaisesRegex(DrainerError, type(raised).__name__) as sync:
                    box.wait(connect, 1, timeout=PATIENCE)
                with self.assertRaisesRegex(DrainerError, type(raised).__name__) as asynchronous:
                    asyncio.run(box.result(connect, 1, timeout=PATIENCE))
                self.assertEqual([sync.exception.__cause__, asynchronous.exception.__cause__], [raised] * 2)

    def test_an_error_that_cannot_tell_itself_ends_no_thread(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError

        def connect():
            raise Mute

        for _ in range(2):
            with self.assertRaisesRegex(DrainerError, "Mute"):
                box.wait(connect, 1, timeout=PATIENCE)

    def test_a_login_without_the_role_is_told_it(self):
        intent = self.agent.act()
        for driver in DRIVERS:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            with self.subTest(driver), only(driver), world.login("REVOKE outbox_agent FROM {}", "GRANT outbox_agent TO {}"):
                waits = [results.begin(world.AGENT, intent.id, None) for _ in range(2)]
                errors = [waiting.future.exception(PATIENCE) for waiting in waits]
                for error in errors:
                    self.assertIsInstance(error, NotAllowed)
                    self.assertRegex(str(error), "lack the role outbox_agent.*GRANT outbox_agent TO.*permission denied")
                    self.assertIsNotNone(error.__cause__)
                self.assertIsNot(*errors)  # each thread raises one of its own
                with self.assertRaises(NotAllowed):
                    asyncio.run(box.result(world.AGENT, intent, timeout=PATIENCE))


class TestOutages(Results):
    def test_a_cut_connection_is_made_anew(self):
        intent = self.agent.act()
        waiting = results.begin(world.AGENT, intent.id, None)
        login = urlsplit(world.AGENT).username
        self.eventually(lambda: self.admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await%%'", login))
        self.settle(intent, "completed")
        self.assertEqual(waiting.future.result(PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))

    def test_a_statement_that_is_stuck_is_given_up(self):
        for driver in ("psycopg", "psycopg2"):
            with self.subTest(driver), mock.patch.object(results, "STUCK", 0.3), mock.patch.dict(
                sys.modules, {"psycopg": None} if driver == "psycopg2" else {},
            ):
                if lacking := world.missing((driver,)):
                    self.skipTest(f"{lacking} is not installed")
                results._waiters.clear()
                intent = self.agent.act(step=driver)
                with world.administrator() as holder:
                    holder.execute("BEGIN; LOCK TABLE outbox.attempt IN ACCESS EXCLUSIVE MODE")
                    waiting = results.begin(world.AGENT, intent.id, None)
                    seen = set()
                    self.eventually(lambda: seen.update(self.backends()) or len(seen) >= 3)
                    holder.execute("COMMIT")
                self.settle(intent, "completed")
                self.assertEqual(waiting.future.result(PATIENCE).status, "completed")

    def test_what_passes_is_waited_out_also_at_the_first_connection(self):
        import psycopg2

        class Refused(Exception):
            sqlstate = ""

        for state, what in (("53300", "too many connections"), ("25006", "a standby, which cannot listen")):
            intent, tries = self.agent.act(step=what), []
            self.settle(intent, "completed")

            def connect(state=state, tries=tries):
                tries.append(1)
                if len(tries) == 1:
                    refused = Refused()
                    refused.sqlstate = state
                    raise refused
                return psycopg2.connect(world.AGENT)

            with self.subTest(what):
                self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")

    def test_a_wait_may_begin_while_the_server_is_down(self):
        at = urlsplit(world.AGENT)
        intent = self.agent.act()
        self.settle(intent, "completed")
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))  # and nothing listens there
            down = world.AGENT.replace(f"{at.hostname}:{at.port}", f"127.0.0.1:{place.getsockname()[1]}")
            for driver in DRIVERS:
                if world.missing((driver,)):
                    continue
                addresses = iter((down, world.AGENT))

                def connect(driver=driver, addresses=addresses):
                    return importlib.import_module(driver).connect(next(addresses))

                with self.subTest(driver):
                    self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")

    def test_an_outage_is_logged_once(self):
        import psycopg2

        class Refused(Exception):
            sqlstate = "53300"

        intent, tries = self.agent.act(), []
        self.settle(intent, "completed")

        def connect():
            tries.append(1)
            if len(tries) < 5:
                raise Refused
            return psycopg2.connect(world.AGENT)

        with self.assertLogs("drainer", "WARNING") as logged:
            self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")
        self.assertEqual(len(logged.output), 1, logged.output)


class TestSharing(Results):
    """One connection serves all waits of a process."""

    def test_a_thousand_awaits_share_one_connection(self):
        self.admin(
            "SELECT outbox.enqueue(%s, 'step-' || n, 'parked/charge', 'b', '{}') FROM generate_series(1, 1000) n", self.run_id)
        ids = [row[0] for row in self.admin("SELECT id FROM outbox.intent WHERE agent_run_id = %s", self.run_id)]
        login = urlsplit(world.AGENT).username
        others = [row[0] for row in self.admin("SELECT pid FROM pg_stat_activity WHERE usename = %s", login)]

        async def awaited():
            loop = asyncio.get_running_loop()
            woken = loop.call_soon_threadsafe = mock.Mock(side_effect=loop.call_soon_threadsafe)
            awaits = [asyncio.create_task(box.result(world.AGENT, number, timeout=PATIENCE)) for number in ids]
            await asyncio.to_thread(self.eventually, lambda: self.waits() == 1000)
            [[connections]] = await asyncio.to_thread(
                self.admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND pid <> ALL (%s)", login, others)
            await asyncio.to_thread(
                self.admin, "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)"
                " SELECT id, 1, 'saga', 'test', 'completed' FROM outbox.intent WHERE agent_run_id = %s", self.run_id)
            answers = await asyncio.gather(*awaits)
            return connections, answers, woken.call_count

        connections, answers, woken = asyncio.run(awaited())
        self.assertLessEqual(connections, 2)
        self.assertLess(woken, 100)  # not for each answer, also of what this test asks in threads of its own
        self.assertEqual({type(answer) for answer in answers}, {Completed})

    def test_a_wait_whose_event_loop_was_closed_ends_no_other_wait(self):
        intents = [self.agent.act(step=step) for step in ("left", "kept")]
        loop = asyncio.new_event_loop()
        results.begin(world.AGENT, intents[0].id, None, awaited=loop.create_future())
        waiting = results.begin(world.AGENT, intents[1].id, None)
        loop.close()
        with self.assertNoLogs("drainer"):  # of a connection that is given up
            for intent in intents:
                self.settle(intent, "completed")
            self.assertEqual(waiting.future.result(PATIENCE).status, "completed")
            self.eventually(lambda: self.waits() == 0)

    def test_many_threads_wait_over_one_connection(self):
        before = self.backends()
        intents = [self.agent.act(step=f"step-{n}") for n in range(40)]
        answers, begun = {}, threading.Barrier(len(intents) + 1)

        def wait(intent):
            begun.wait()
            try:
                answers[intent.id] = box.wait(world.AGENT, intent, timeout=PATIENCE).status
            except Failed as failed:
                answers[intent.id] = failed.status

        threads = [threading.Thread(target=wait, args=(intent,)) for intent in intents]
        for thread in threads:
            thread.start()
        begun.wait()
        self.eventually(lambda: self.waits() == len(intents))
        waiting = self.eventually(lambda: self.backends() - before)
        expected = {intent.id: ("completed", "failed")[n % 2] for n, intent in enumerate(intents)}
        for intent in intents:
            self.settle(intent, expected[intent.id])
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(answers, expected)
        self.assertEqual(len(waiting | (self.backends() - before)), 1)

    def test_a_thread_that_cannot_start_ends_no_later_wait(self):
        intent = self.agent.act()
        self.settle(intent, "completed")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaisesRegex(RuntimeError, "new thread"):
                box.wait(world.AGENT, intent, timeout=PATIENCE)
        self.assertEqual(box.wait(world.AGENT, intent, timeout=PATIENCE).status, "completed")

    def test_a_wait_that_is_cancelled_leaves_the_others(self):
        async def awaited(intent):
            one, other = (asyncio.create_task(box.result(world.AGENT, intent, timeout=PATIENCE)) for _ in range(2))
            await asyncio.sleep(0.2)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
            await asyncio.to_thread(self.settle, intent, "completed")
            return one.cancelled(), (await other).status

        for step in ("one loop", "another"):
            self.assertEqual(asyncio.run(awaited(self.agent.act(step=step))), (True, "completed"))
        self.assertEqual(results._waiters[world.AGENT]._waits, set())

    def test_a_way_to_the_database_that_is_not_used_any_more_is_forgotten(self):
        import psycopg2

        intent = self.agent.act()
        self.settle(intent, "completed")
        with mock.patch.object(results, "IDLE", 0.01):
            for _ in range(3):  # as a server of tools that is made for each run
                box.wait(lambda: psycopg2.connect(world.AGENT), intent, timeout=PATIENCE)
            for thread in threading.enumerate():
                if thread.name == "drainer-results":
                    thread.join(PATIENCE)
        self.assertEqual(results._waiters, {})

    def test_functions_share_a_connection_only_to_the_same_place(self):
        for driver in DRIVERS:
            if world.missing((driver,)):
                continue
            opened = importlib.import_module(driver).connect
            ways = []
            for dsn, options in ((world.AGENT, {}), (world.AGENT, {"application_name": "run-17"}), (world.ADMIN, {}),
                                 (world.AGENT, {"dbname": "postgres"}), (world.AGENT, {"options": "-c jit=off"})):
                connect = functools.partial(opened, dsn, **options)
                with self.subTest(driver, **options), contextlib.closing(connect()) as connection:
                    ways.append(results.way(connect, connection))
            self.assertIsInstance(ways[0], results.Way)
            self.assertEqual(ways[0], ways[1])
            self.assertEqual(len(set(ways)), 4)
        self.assertIs(results.way(opened, object()), opened)

    def test_functions_that_lead_elsewhere_part(self):
        import psycopg2

        intents = [self.agent.act(step=str(n)) for n in range(2)]
        functions = [lambda: psycopg2.connect(world.AGENT), lambda: psycopg2.connect(world.AGENT)]
        place = (None, frozenset())
        waits = [results.begin(results.Way(place, connect), intent.id, None) for connect, intent in zip(functions, intents)]
        self.eventually(lambda: all(connect in results._waiters for connect in functions))
        waits[0].forget()
        self.assertEqual(results._waiters[functions[0]]._waits, set())
        self.settle(intents[1], "completed")
        self.assertEqual(waits[1].future.result(PATIENCE).status, "completed")

    def test_a_connection_that_is_not_used_any_more_is_closed(self):
        for driver in WITH_ASYNCPG:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            intent = self.agent.act(step=driver)
            self.settle(intent, "completed")
            others = self.backends()
            gc.disable()
            self.addCleanup(gc.enable)
            with self.subTest(driver), mock.patch.object(results, "IDLE", 0.5):
                with only(driver):
                    box.wait(world.AGENT, intent, timeout=PATIENCE)
                self.eventually(lambda: not results._waiters)
                self.eventually(lambda: not self.backends() - others)
            gc.enable()

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_child_leaves_the_parents_connection_alone(self):
        for driver in DRIVERS:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            intent, childs = self.agent.act(step=driver), self.agent.act(step=driver + " of the child")
            with self.subTest(driver), only(driver):
                others = self.backends()
                waiting = results.begin(world.AGENT, intent.id, None)
                parents = self.eventually(lambda: self.backends() - others)
                child = multiprocessing.get_context("fork").Process(target=wait_in_child, args=(childs.id,))
                child.start()
                self.eventually(lambda: not child.is_alive() or len(self.backends() - others) > 1)
                self.assertEqual(len(self.backends() - others - parents), 1)  # of the child's own
                self.settle(childs, "completed")
                child.join(PATIENCE)
                self.assertEqual(child.exitcode, 0)
                self.assertFalse(waiting.future.done())
                self.settle(intent, "completed")
                self.assertEqual(waiting.future.result(PATIENCE).status, "completed")
                self.assertLessEqual(parents, self.backends())  # the same one all the time

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_waits_by_itself(self):
        intent = self.agent.act()
        self.assertIsInstance(box.wait(world.AGENT, intent, timeout=0.2), Pending)
        self.settle(intent, "completed")
        child = os.fork()
        if child == 0:
            answer = None
            try:
                answer = box.wait(world.AGENT, intent, timeout=PATIENCE)
            finally:
                os._exit(0 if isinstance(answer, Completed) else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class TestDrivers(Results):
    def test_every_driver_can_wait(self):
        for driver in WITH_ASYNCPG:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            intent = self.agent.act(step=driver)
            self.settle(intent, "completed")
            with self.subTest(driver), only(driver):
                self.assertEqual(box.wait(world.AGENT, intent, timeout=PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))
                with self.assertRaisesRegex(NotCommitted, "not there"):
                    box.wait(world.AGENT, dataclasses.replace(intent, id=4711_4711), timeout=PATIENCE)

    def test_every_driver_hears_what_settles(self):
        for driver in WITH_ASYNCPG:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            intent = self.agent.act(step="hears " + driver)
            with self.subTest(driver):
                with only(driver):
                    link = results._connect(world.AGENT)
                    link.listen()
                while link.hears(0.05):
                    pass  # of other tests' intents
                self.settle(intent, "completed")
                self.assertTrue(link.hears(PATIENCE))  # while it waits
                self.settle(intent, "completed")
                self.assertEqual(link.ask("SELECT {}", "1"), [("1",)])
                self.assertTrue(link.hears(PATIENCE))  # or while it asks
                link.close()

    @unittest.skipUnless(world.POOLER, "no pgbouncer here")
    def test_no_driver_listens_behind_a_pooler(self):
        for driver in WITH_ASYNCPG:
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            intent = self.agent.act(step=driver)
            self.settle(intent, "completed")
            with self.subTest(driver), only(driver):
                link = results._connect(world.POOLER)
                link.listen()
                # The pooler has one session: what one client does there another one sees.
                self.assertEqual(link.ask("SELECT count(*) FROM pg_listening_channels() WHERE CAST({} AS text) <> ''", "any"), [(0,)])
                link.close()
                self.assertEqual(box.wait(world.POOLER, intent, timeout=PATIENCE).status, "completed")

    @unittest.skipUnless(world.POOLER, "no pgbouncer here")
    def test_a_function_of_psycopg_prepares_nothing_behind_a_pooler(self):
        if lacking := world.missing(("psycopg",)):
            self.skipTest(f"{lacking} is not installed")
        import psycopg

        intents = [self.agent.act(step=str(n)) for n in range(2)]
        with mock.patch.object(results, "SLOWEST", 0.01), mock.patch.object(results, "QUICKEST", 0.01):
            waits = [results.begin(lambda: psycopg.connect(world.POOLER), intent.id, None) for intent in intents]
            with self.assertRaises(TimeoutError):
                waits[0].future.result(1)  # some fifty looks each, over the one session of the pooler
            for intent in intents:
                self.settle(intent, "completed")
            self.assertEqual([waiting.future.result(PATIENCE).status for waiting in waits], ["completed"] * 2)

    def test_what_settles_is_heard_and_not_waited_for(self):
        intent = self.agent.act()
        with mock.patch.object(results, "SLOWEST", 3600), mock.patch.object(results, "QUICKEST", 3600):
            waiting = results.begin(world.AGENT, intent.id, None)
            self.eventually(lambda: self.admin(
                "SELECT 1 FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await(CAST%%' AND state = 'idle'",
                urlsplit(world.AGENT).username))
            self.settle(intent, "completed")
            self.assertEqual(waiting.future.result(PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))
        results._waiters.clear()


class TestFunctions(Results):
    """The program's own function opens the connection."""

    def test_a_function_may_open_the_connection(self):
        import psycopg2

        intent = self.agent.act()
        self.settle(intent, "completed")
        self.assertEqual(box.wait(lambda: psycopg2.connect(world.AGENT), intent, timeout=PATIENCE).provider_ref, "ref-1")

    def test_a_connection_of_sqlalchemy_is_taken_out_of_its_pool(self):
        if lacking := world.missing(("sqlalchemy",)):
            self.skipTest(f"{lacking} is not installed")
        from sqlalchemy import create_engine, pool

        engine = create_engine(world.AGENT.replace("postgres://", "postgresql+psycopg2://"), poolclass=pool.QueuePool,
                               pool_size=1, max_overflow=0, pool_timeout=0.05)
        intent = self.agent.act()
        others = self.backends()
        held = engine.raw_connection()
        waiting = results.begin(engine.raw_connection, intent.id, None)
        with self.assertRaises(TimeoutError):
            waiting.future.result(0.3)  # there is no place, and it asks again
        held.close()
        waiting_on = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s) AND query LIKE '%%outbox.await(CAST%%' AND state = 'idle'"
        self.eventually(lambda: self.admin(waiting_on, list(self.backends() - others)))
        self.settle(intent, "completed")
        self.assertEqual(waiting.future.result(PATIENCE).status, "completed")
        engine.raw_connection().close()  # while the wait's connection is still open
        self.assertEqual(engine.pool.checkedout(), 0)
        engine.dispose()

    def test_a_listener_of_sqlalchemys_engine_may_begin_a_transaction(self):
        if lacking := world.missing(("sqlalchemy",)):
            self.skipTest(f"{lacking} is not installed")
        from sqlalchemy import create_engine, event, pool

        engine = create_engine(world.AGENT.replace("postgres://", "postgresql+psycopg2://"), poolclass=pool.NullPool)

        @event.listens_for(engine, "connect")
        def set_up(connection, _):
            with connection.cursor() as cursor:
                cursor.execute("SET application_name = 'set by a listener'")

        intent = self.agent.act()
        self.settle(intent, "completed")
        self.assertEqual(box.wait(engine.raw_connection, intent, timeout=PATIENCE).status, "completed")
        self.assertTrue(self.admin("SELECT 1 FROM pg_stat_activity WHERE application_name = 'set by a listener'"))

    def test_a_connection_that_others_hold_too_is_refused(self):
        if lacking := world.missing(("sqlalchemy",)):
            self.skipTest(f"{lacking} is not installed")
        from psycopg2.pool import ThreadedConnectionPool
        from sqlalchemy import create_engine, pool

        intent = self.agent.act()
        engine = create_engine(world.AGENT.replace("postgres://", "postgresql+psycopg2://"), poolclass=pool.StaticPool)
        others = engine.raw_connection()
        with others.cursor() as cursor:
            cursor.execute("SET LOCAL application_name = 'in a transaction'")
        threaded = ThreadedConnectionPool(0, 1, world.AGENT)
        for connect in (engine.raw_connection, lambda: engine.raw_connection(), threaded.getconn, functools.partial(threaded.getconn)):
            with self.assertRaisesRegex(DrainerError, "not take it from a pool"):
                box.wait(connect, intent, timeout=PATIENCE)
        threaded.putconn(threaded.getconn())  # its one place is free
        with others.cursor() as cursor:  # and the other user's transaction goes on
            cursor.execute("SHOW application_name")
            self.assertEqual(cursor.fetchone(), ("in a transaction",))

    def test_a_connection_in_a_transaction_is_refused_and_left_as_it_is(self):
        intent = self.agent.act()
        for driver in DRIVERS:
            if world.missing((driver,)):
                continue
            connection = importlib.import_module(driver).connect(world.AGENT)
            with self.subTest(driver), contextlib.closing(connection), connection.cursor() as cursor:
                cursor.execute("SET LOCAL application_name = 'in a transaction'")
                with self.assertRaisesRegex(DrainerError, "in a transaction.*commits it, or opens another"):
                    box.wait(lambda: connection, intent, timeout=PATIENCE)
                cursor.execute("SHOW application_name")
                self.assertEqual(cursor.fetchone(), ("in a transaction",))

    def test_a_function_that_ends_its_thread_ends_no_later_wait(self):
        import psycopg2

        intent, opened = self.agent.act(), []
        self.settle(intent, "completed")

        def connect():
            opened.append(None)
            if len(opened) == 1:
                raise SystemExit("no database is configured")
            return psycopg2.connect(world.AGENT)

        with self.assertRaisesRegex(DrainerError, "SystemExit: no database is configured"):
            box.wait(connect, intent, timeout=PATIENCE)
        self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")

    def test_rows_of_the_functions_own_kind_are_read(self):
        if lacking := world.missing(("psycopg",)):
            self.skipTest(f"{lacking} is not installed")
        import psycopg
        from psycopg.rows import args_row

        intent = self.agent.act()
        self.settle(intent, "completed")
        connect = functools.partial(psycopg.connect, world.AGENT, row_factory=args_row(lambda *columns: len(columns)))
        self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")

    def test_a_connection_of_psycopgs_pool_is_given_back(self):
        if lacking := world.missing(("psycopg_pool",)):
            self.skipTest(f"{lacking} is not installed")
        from psycopg_pool import ConnectionPool

        with ConnectionPool(world.AGENT, min_size=1, max_size=1) as pool:
            with self.assertRaisesRegex(DrainerError, "not take it from a pool"):
                box.wait(lambda: pool.getconn(), self.agent.act(), timeout=PATIENCE)
            with pool.connection(timeout=PATIENCE) as connection:
                connection.execute("SELECT 1")


class TestALostAnswerToCommit(Results):
    """The commit reached the server, and its answer never came back."""

    def test_the_transaction_can_be_run_again(self):
        for kind in world.AGENTS:
            if kind is world.Django:  # whose connection stays
                continue
            with self.subTest(kind.__name__):
                if lacking := world.missing(kind.needs):
                    self.skipTest(f"{lacking} is not installed")
                agent = kind(f"{self.run_id}-{kind.__name__}")
                with self.assertRaises(Exception) as lost, mock.patch.object(world, "AGENT", self.losing_commits()):
                    agent.act()
                self.assertNotIsInstance(lost.exception, DrainerError)
                self.assertFalse(agent.act().created)
                self.assertEqual(self.admin("SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s", agent.run_id)[0][0], 1)

    def losing_commits(self):
        """Starts a proxy that cuts the connection in place of the answer to COMMIT."""
        at = urlsplit(world.AGENT)
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve():
            client, _ = listener.accept()
            server = socket.create_connection((at.hostname, at.port))
            committing = threading.Event()

            def answers():
                while data := server.recv(65536):
                    if committing.is_set():
                        break
                    client.sendall(data)
                client.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=answers, daemon=True).start()
            enqueued = False
            while data := client.recv(65536):
                enqueued |= b"outbox.enqueue" in data
                if enqueued and b"COMMIT" in data:  # SQLAlchemy's engine has transactions of its own before
                    committing.set()
                server.sendall(data)
            server.close()
            client.close()

        threading.Thread(target=serve, daemon=True).start()
        return world.AGENT.replace(f"{at.hostname}:{at.port}", f"127.0.0.1:{listener.getsockname()[1]}")


if __name__ == "__main__":
    unittest.main()
