"""Results, from a daemon that drains and from a database that is taken away."""

import asyncio
import dataclasses
import gc
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

box = Outbox()
PATIENCE = 60  # seconds, on a busy machine


DRIVERS = ("psycopg", "psycopg2")  # of which the tests, too, need one to look into the database


def only(driver):
    """Hides the other drivers, of which a wait takes the first."""
    return mock.patch.dict(sys.modules, {name: None for name in DRIVERS if name != driver})


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


class TestResults(Results):
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

    def test_a_wait_in_an_event_loop_is_refused(self):
        async def mistaken():
            box.wait(world.AGENT, 1)

        with self.assertRaisesRegex(DrainerError, "await box.result"):
            asyncio.run(mistaken())

    def test_what_cannot_pass_is_raised_and_not_waited_for(self):
        with self.assertRaisesRegex(Exception, "password|authentication"):
            box.wait(world.AGENT.replace(urlsplit(world.AGENT).password, "wrong"), 1, timeout=PATIENCE)

    def test_a_thousand_awaits_share_one_connection(self):
        self.admin(
            "SELECT outbox.enqueue(%s, 'step-' || n, 'parked/charge', 'b', '{}') FROM generate_series(1, 1000) n", self.run_id)
        ids = [row[0] for row in self.admin("SELECT id FROM outbox.intent WHERE agent_run_id = %s", self.run_id)]
        login = urlsplit(world.AGENT).username
        others = [row[0] for row in self.admin("SELECT pid FROM pg_stat_activity WHERE usename = %s", login)]

        async def awaited():
            awaits = [asyncio.create_task(box.result(world.AGENT, number, timeout=PATIENCE)) for number in ids]
            while not results._waiters or len(results._waiters[world.AGENT]._waits) < 1000:
                await asyncio.sleep(0.01)
            [[connections]] = await asyncio.to_thread(
                self.admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND pid <> ALL (%s)", login, others)
            await asyncio.to_thread(
                self.admin, "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)"
                " SELECT id, 1, 'saga', 'test', 'completed' FROM outbox.intent WHERE agent_run_id = %s", self.run_id)
            return connections, await asyncio.gather(*awaits)

        connections, answers = asyncio.run(awaited())
        self.assertLessEqual(connections, 2)
        self.assertEqual({type(answer) for answer in answers}, {Completed})

    def test_a_cut_connection_is_made_anew(self):
        intent = self.agent.act()
        waiting = results.begin(world.AGENT, intent.id, None)
        login = urlsplit(world.AGENT).username
        cut = 0
        while not cut:
            [[cut]] = self.admin(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await%%'", login)
        self.settle(intent, "completed")
        self.assertEqual(waiting.future.result(PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))

    def test_a_statement_that_is_stuck_is_given_up(self):
        def backends():
            return {pid for (pid,) in self.admin(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%outbox.await(%%' AND pid <> pg_backend_pid() AND usename = %s",
                urlsplit(world.AGENT).username)}

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
                    while len(seen) < 3:
                        seen |= backends()
                    holder.execute("COMMIT")
                self.settle(intent, "completed")
                self.assertEqual(waiting.future.result(PATIENCE).status, "completed")

    def backends(self):
        """The connections that wait for this login."""
        return {pid for (pid,) in self.admin(
            "SELECT pid FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await(%%' AND pid <> pg_backend_pid()",
            urlsplit(world.AGENT).username)}

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
        while world.AGENT not in results._waiters or len(results._waiters[world.AGENT]._waits) < len(intents):
            pass
        while not (waiting := self.backends() - before):
            pass
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

    def test_every_driver_can_wait(self):
        for driver in ("psycopg", "psycopg2", "asyncpg"):
            if world.missing((driver,)):
                continue
            hidden = {name: None for name in ("psycopg", "psycopg2", "asyncpg") if name != driver}
            results._waiters.clear()
            intent = self.agent.act(step=driver)
            self.settle(intent, "completed")
            with self.subTest(driver), mock.patch.dict(sys.modules, hidden):
                self.assertEqual(box.wait(world.AGENT, intent, timeout=PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))
                with self.assertRaisesRegex(NotCommitted, "not there"):
                    box.wait(world.AGENT, dataclasses.replace(intent, id=4711_4711), timeout=PATIENCE)

    def test_every_driver_hears_what_settles(self):
        for driver in ("psycopg", "psycopg2", "asyncpg"):
            if world.missing((driver,)):
                continue
            hidden = {name: None for name in ("psycopg", "psycopg2", "asyncpg") if name != driver}
            results._waiters.clear()
            intent = self.agent.act(step="hears " + driver)
            with self.subTest(driver):
                with mock.patch.dict(sys.modules, hidden):
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

    def test_what_settles_is_heard_and_not_waited_for(self):
        intent = self.agent.act()
        with mock.patch.object(results, "SLOWEST", 3600), mock.patch.object(results, "QUICKEST", 3600):
            waiting = results.begin(world.AGENT, intent.id, None)
            while not self.admin("SELECT 1 FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%outbox.await(CAST%%' AND state = 'idle'",
                                 urlsplit(world.AGENT).username):
                pass
            self.settle(intent, "completed")
            self.assertEqual(waiting.future.result(PATIENCE), Completed(intent.id, "ref-1", {"n": 1}))
        results._waiters.clear()

    def test_what_a_database_cannot_be_asked_for_ends_no_other_wait(self):
        intent = self.agent.act()
        waiting = results.begin(world.AGENT, intent.id, None)
        for wrong in ("5", None, 0, 2**63):
            with self.assertRaisesRegex(TypeError, "pass the Intent"):
                box.wait(world.AGENT, wrong, timeout=PATIENCE)
        self.settle(intent, "completed")
        self.assertEqual(waiting.future.result(PATIENCE).status, "completed")

    def test_a_response_that_python_cannot_parse_is_text_and_ends_no_other_wait(self):
        deep, other = self.agent.act(step="deep"), self.agent.act(step="other")
        nested = "[" * 4000 + "]" * 4000
        self.settle(deep, "completed")
        self.admin("UPDATE outbox.attempt SET response = CAST(%s AS jsonb) WHERE intent_id = %s", nested, deep.id)
        self.settle(other, "completed")
        waits = [results.begin(world.AGENT, intent.id, None) for intent in (deep, other)]
        self.assertEqual([waiting.future.result(PATIENCE).response for waiting in waits], [nested, {"n": 1}])

    def test_a_wait_may_be_endless(self):
        intent = self.agent.act()
        self.settle(intent, "completed")
        self.assertEqual(box.wait(world.AGENT, intent, timeout=float("inf")).status, "completed")
        self.assertEqual(asyncio.run(box.result(world.AGENT, intent, timeout=float("inf"))).status, "completed")

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

    def test_a_shortage_passes_also_at_the_first_connection(self):
        import psycopg2

        class TooManyConnections(Exception):
            sqlstate = "53300"

        intent, tries = self.agent.act(), []
        self.settle(intent, "completed")

        def connect():
            tries.append(1)
            if len(tries) == 1:
                raise TooManyConnections
            return psycopg2.connect(world.AGENT)

        self.assertEqual(box.wait(connect, intent, timeout=PATIENCE).status, "completed")

    def test_a_function_may_open_the_connection(self):
        import psycopg2

        intent = self.agent.act()
        self.settle(intent, "completed")
        self.assertEqual(box.wait(lambda: psycopg2.connect(world.AGENT), intent, timeout=PATIENCE).provider_ref, "ref-1")

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
                while not (parents := self.backends() - others):
                    pass
                child = multiprocessing.get_context("fork").Process(target=wait_in_child, args=(childs.id,))
                child.start()
                while child.is_alive() and len(self.backends() - others) < 2:
                    pass
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


class TestALostAnswerToCommit(Results):
    """The commit reached the server, and its answer never came back."""

    def test_the_transaction_can_be_run_again(self):
        import psycopg2

        with self.assertRaises(psycopg2.OperationalError), mock.patch.object(world, "AGENT", self.losing_commits()):
            self.agent.act()
        again = self.agent.act()
        self.assertFalse(again.created)
        self.assertEqual(self.admin("SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s", self.run_id)[0][0], 1)

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
            while data := client.recv(65536):
                if b"COMMIT" in data:
                    committing.set()
                server.sendall(data)
            server.close()
            client.close()

        threading.Thread(target=serve, daemon=True).start()
        return world.AGENT.replace(f"{at.hostname}:{at.port}", f"127.0.0.1:{listener.getsockname()[1]}")


if __name__ == "__main__":
    unittest.main()
