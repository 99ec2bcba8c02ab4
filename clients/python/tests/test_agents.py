"""Tools of agent frameworks, against the published interface of the Claude Agent SDK for Python, 0.2.143."""

import asyncio
import concurrent.futures
import dataclasses
import importlib
import sys
import threading
import types
import unittest
from unittest import mock
from urllib.parse import urlsplit

import live_frameworks
import world
from drainer import agents, results
from drainer.errors import SENTENCES
from drainer.agents import FROM_TOOL_USE_ID, outbox_hook, outbox_server, outbox_tool

RECORDED = SENTENCES["recorded"]


@dataclasses.dataclass
class SdkMcpTool:
    name: str
    description: str
    input_schema: object
    handler: object


def stand_in():
    """The two functions of the SDK that are used, with its signatures."""
    sdk = types.ModuleType("claude_agent_sdk")
    sdk.tool = lambda name, description, input_schema: lambda handler: SdkMcpTool(name, description, input_schema, handler)
    sdk.create_sdk_mcp_server = lambda name, version="1.0.0", tools=None: {"type": "sdk", "name": name, "tools": tools}
    return mock.patch.dict(sys.modules, {"claude_agent_sdk": sdk})


def connect():
    import psycopg2

    return psycopg2.connect(world.AGENT)


class Proxy:
    """As wrapt's: the class that it tells is the driver's, and its type is not."""

    def __init__(self, wrapped):
        self.__dict__["__wrapped__"] = wrapped

    __class__ = property(lambda self: type(self.__wrapped__))

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name, value):
        setattr(self.__wrapped__, name, value)


class Asking(world.Database):
    def setUp(self):
        super().setUp()
        if lacking := world.missing(("psycopg2",)):
            self.skipTest(f"{lacking} is not installed")

    def charge(self, tool="parked/charge", **given):
        given = {"step": "charge", "scope": lambda arguments: arguments["invoice"], "schema": {"invoice": str, "amount": int}, **given}

        @outbox_tool(tool, **given)
        def charge(connection, arguments):
            """Charge an invoice."""
            with connection.cursor() as cursor:
                cursor.execute(world.STATE.format("%s"), (self.run_id,))
            return {"amount": arguments["amount"]}

        return charge

    def ask(self, tool, **arguments):
        with stand_in():
            server = outbox_server("billing", [tool], run=self.run_id, connect=connect)
        (listed,) = server["tools"]
        self.assertEqual((listed.name, listed.description), ("charge", "Charge an invoice."))
        return asyncio.run(listed.handler({"invoice": "invoice_442", "amount": 1200, **arguments}))

    def recorded(self):
        return self.admin(
            "SELECT (SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s), (SELECT count(*) FROM agent_state WHERE run = %s)",
            self.run_id, self.run_id)[0]


class TestTools(Asking):
    def test_a_loop_that_asks_three_times_records_once(self):
        answers = [self.ask(self.charge())["content"][0]["text"] for _ in range(3)]
        self.assertEqual(answers, [RECORDED] * 3)
        self.assertEqual(self.recorded()[0], 1)

    def test_another_amount_is_refused_and_the_state_rolled_back(self):
        self.ask(self.charge())
        answer = self.ask(self.charge(), amount=9)
        self.assertEqual(answer, {"content": [{"type": "text", "text": SENTENCES["key_taken"]}], "is_error": True})
        self.assertEqual(self.recorded(), (1, 1))

    def test_the_result_is_waited_for(self):
        answer = self.ask(self.charge("ok/act", wait=60))
        self.assertEqual(answer["is_error"], False)
        self.assertTrue(answer["content"][0]["text"].startswith("It is done. Reference: ref-"), answer)

    def test_a_connection_string_will_do(self):
        arguments = {"invoice": "invoice_442", "amount": 1200}
        answer = asyncio.run(self.charge("ok/act", wait=60).answer(arguments, run=self.run_id, connect=world.AGENT))
        self.assertTrue(answer.text.startswith("It is done."), answer)
        self.assertEqual(self.charge("ok/act", wait=60).call(arguments, run=self.run_id, connect=world.AGENT), answer)
        self.assertEqual(self.recorded(), (1, 2))

    def test_a_connection_of_a_pool_is_given_back(self):
        from psycopg2.pool import ThreadedConnectionPool

        pools = [ThreadedConnectionPool(0, 1, world.AGENT)]
        if not world.missing(("psycopg_pool",)):
            from psycopg_pool import ConnectionPool

            pools.append(ConnectionPool(world.AGENT, min_size=1, max_size=1, timeout=world.PATIENCE))
            self.addCleanup(pools[-1].close)
        self.addCleanup(pools[0].closeall)

        def asked(tool, connect):
            return asyncio.run(tool.answer({"invoice": "b", "amount": 1}, run=self.run_id, connect=connect)).text

        for pool in pools:
            with self.subTest(type(pool).__module__):
                with self.assertLogs("drainer", "ERROR") as logged:
                    self.assertEqual(asked(self.charge(step="waits", wait=60), pool.getconn), agents.NOT_RECORDED)
                self.assertIn("not take it from a pool", logged.output[0])
                for connect in (pool.getconn, pool.getconn if pool is pools[0] else lambda: pool.getconn()):
                    self.assertEqual(asked(self.charge(), connect), RECORDED)
        self.assertEqual(self.recorded()[0], 1)

    def test_a_tracers_proxy_of_a_connection_will_do(self):
        for driver in ("psycopg", "psycopg2"):
            if world.missing((driver,)):
                continue
            results._waiters.clear()
            with self.subTest(driver):
                answer = asyncio.run(self.charge("ok/act", step=driver, wait=world.PATIENCE).answer(
                    {"invoice": "b", "amount": 1}, run=self.run_id,
                    connect=lambda: Proxy(importlib.import_module(driver).connect(world.AGENT))))
                self.assertTrue(answer.text.startswith("It is done."), answer)

    def test_thirty_runs_with_a_function_each_wait_over_one_connection(self):
        import psycopg2

        results._waiters.clear()
        login = urlsplit(world.AGENT).username
        others = [pid for (pid,) in self.admin("SELECT pid FROM pg_stat_activity WHERE usename = %s", login)]
        runs = [f"{self.run_id}-{n}" for n in range(30)]

        def settle():
            self.eventually(lambda: sum(len(waiter._waits) for waiter in list(results._waiters.values())) == len(runs))
            self.assertEqual(len(results._waiters), 1)
            self.eventually(lambda: self.admin(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND pid <> ALL (%s)", login, others)[0][0] <= 2)
            self.admin("INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)"
                       " SELECT id, 1, 'saga', 'test', 'completed' FROM outbox.intent WHERE agent_run_id = ANY (%s)", runs)

        async def asked():
            return (await asyncio.gather(asyncio.to_thread(settle), *(
                self.charge(wait=world.PATIENCE).answer(
                    {"invoice": "b", "amount": 1}, run=run, connect=lambda run=run: psycopg2.connect(world.AGENT, application_name=run))
                for run in runs)))[1:]

        self.assertEqual({answer.text for answer in asyncio.run(asked())}, {"It is done."})

    def test_a_wait_that_is_over_says_so_and_no_failure(self):
        answer = self.ask(self.charge(wait=0.05))
        self.assertEqual((answer["content"][0]["text"], answer["is_error"]), (SENTENCES["pending"], False))

    def test_a_function_that_fails_records_nothing_and_shows_the_model_nothing(self):
        @outbox_tool("parked/charge", step="charge", scope=lambda arguments: "b", schema={})
        def charge(connection, arguments):
            """Charge an invoice."""
            with connection.cursor() as cursor:
                cursor.execute(world.STATE.format("%s"), (self.run_id,))
            raise RuntimeError("canary")

        with self.assertLogs("drainer", "ERROR"):
            answer = self.ask(charge)
        self.assertEqual(answer, {"content": [{"type": "text", "text": agents.NOT_RECORDED}], "is_error": True})
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_function_that_comes_to_an_iterators_end_is_answered(self):
        @outbox_tool("parked/charge", step="charge", scope=lambda arguments: "b", schema={})
        def charge(connection, arguments):
            """Charge an invoice."""
            return next(iter(()))

        with self.assertLogs("drainer", "ERROR"):
            answer = asyncio.run(asyncio.wait_for(charge.answer({}, run=self.run_id, connect=connect), world.PATIENCE))
        self.assertEqual((answer.text, answer.is_error), (agents.NOT_RECORDED, True))

    def test_a_connection_that_commits_by_itself_keeps_no_state_without_an_intent(self):
        def autocommitting():
            connection = connect()
            connection.autocommit = True
            return connection

        with self.assertLogs("drainer", "ERROR") as logged:
            answer = asyncio.run(self.charge().answer({"invoice": "b", "amount": 1}, run=self.run_id, connect=autocommitting))
        self.assertEqual((answer.text, answer.is_error), (agents.NOT_RECORDED, True))
        self.assertIn("autocommit", logged.output[0])
        self.assertEqual(self.recorded(), (0, 0))

    def test_a_lost_answer_to_the_commit_invites_no_second_effect(self):
        import psycopg2

        class Losing(psycopg2.extensions.connection):
            def commit(self):
                super().commit()
                raise psycopg2.OperationalError("the connection is lost")

        for step, said in (("charge", agents.FAULT), (FROM_TOOL_USE_ID, agents.FAULT_OF_A_NEW_STEP)):
            with self.subTest(step), self.assertLogs("drainer", "ERROR"):
                answer = asyncio.run(self.charge(step=step).answer(
                    {"invoice": "b", "amount": 1}, run=self.run_id, tool_use_id="toolu_1",
                    connect=lambda: psycopg2.connect(world.AGENT, connection_factory=Losing)))
            self.assertEqual((answer.text, answer.is_error), (said, True))
        self.assertEqual(self.recorded()[0], 2)
        self.assertIn("is safe", agents.FAULT)
        self.assertNotIn("is safe", agents.FAULT_OF_A_NEW_STEP)

    def test_what_is_recorded_is_said_to_be_where_the_wait_fails(self):
        opened = []
        results._waiters.clear()  # another test's connection would do

        def once():
            opened.append(1)
            if len(opened) > 1:
                raise ValueError("no such database")
            return connect()

        with self.assertLogs("drainer", "ERROR"):
            answer = asyncio.run(self.charge(wait=world.PATIENCE).answer({"invoice": "b", "amount": 1}, run=self.run_id, connect=once))
        self.assertEqual((answer.text, answer.is_error), (RECORDED, False))

    def test_calls_that_wait_leave_the_programs_threads_to_others(self):
        async def asked():
            asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
            waiting = asyncio.create_task(self.charge(wait=600).answer({"invoice": "b", "amount": 1}, run=self.run_id, connect=connect))
            await asyncio.sleep(0)  # it takes the one thread
            other = await self.charge().answer({"invoice": "c", "amount": 1}, run=self.run_id, connect=connect)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return other.text

        self.assertEqual(asyncio.run(asyncio.wait_for(asked(), world.PATIENCE)), RECORDED)

    def hook(self, tool, name, tool_use_id="toolu_1", **arguments):
        hook = outbox_hook({"mcp__billing__charge": tool}, run=self.run_id, connect=connect)
        given = {"hook_event_name": "PreToolUse", "tool_name": name, "tool_input": {"invoice": "invoice_442", "amount": 1200, **arguments}}
        return asyncio.run(hook(given, tool_use_id, {"signal": None}))

    def test_a_hook_denies_the_call_that_it_records(self):
        decided = self.hook(self.charge(), "mcp__billing__charge")
        self.assertEqual(decided, {"hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": RECORDED}})
        self.assertEqual(self.hook(self.charge(), "Bash"), {})
        self.assertEqual(self.recorded(), (1, 1))

    def test_a_hook_denies_in_time_a_call_whose_commit_does_not_end(self):
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)

        def stuck():
            goes_on.wait()
            return connect()

        async def asked(step):
            hook = outbox_hook({"mcp__billing__charge": self.charge(step=step)}, run=self.run_id, connect=stuck, timeout=0.05)
            given = {"tool_name": "mcp__billing__charge", "tool_input": {"invoice": "b", "amount": 1}}
            decided = (await hook(given, "toolu_1", None))["hookSpecificOutput"]
            goes_on.set()  # the loop waits for its threads at its end
            return decided["permissionDecision"], decided["permissionDecisionReason"]

        self.assertEqual(asyncio.run(asyncio.wait_for(asked("charge"), world.PATIENCE)), ("deny", agents.FAULT))
        goes_on.clear()
        self.assertEqual(asyncio.run(asyncio.wait_for(asked(FROM_TOOL_USE_ID), world.PATIENCE)), ("deny", agents.FAULT_OF_A_NEW_STEP))

    def test_a_hook_whose_time_is_over_during_the_wait_says_what_is_recorded(self):
        async def at_once(function, *given):  # so that the time is over only after the commit
            return function(*given)

        with mock.patch.object(asyncio, "to_thread", at_once):
            hook = outbox_hook({"mcp__billing__charge": self.charge(wait=world.PATIENCE)}, run=self.run_id, connect=connect, timeout=0.01)
            decided = asyncio.run(hook({"tool_name": "mcp__billing__charge", "tool_input": {"invoice": "b", "amount": 1}}, "toolu_1", None))
        self.assertEqual(decided["hookSpecificOutput"]["permissionDecisionReason"], RECORDED)
        self.assertEqual(self.recorded(), (1, 1))

    def test_a_tool_use_id_is_a_step_only_where_it_is_told(self):
        tool = self.charge(step=FROM_TOOL_USE_ID)
        for tool_use_id in ("toolu_1", "toolu_1", "toolu_2"):
            self.hook(tool, "mcp__billing__charge", tool_use_id)
        self.assertEqual(self.recorded()[0], 2)
        with self.assertLogs("drainer", "ERROR"):
            self.hook(tool, "mcp__billing__charge", None)
        with self.assertRaisesRegex(ValueError, "outbox_hook"):
            self.ask(tool)
        self.assertEqual(self.recorded()[0], 2)


@dataclasses.dataclass
class McpTool:
    name: str
    description: str
    inputSchema: dict


@dataclasses.dataclass
class McpText:
    type: str
    text: str


class McpServer:
    """The two decorators of mcp.server.lowlevel.Server, version 1.29.0, and what it makes of an exception."""

    def list_tools(self):
        return lambda handler: setattr(self, "listed", handler)

    def call_tool(self):
        return lambda handler: setattr(self, "called", handler)

    def ask(self, name, **arguments):
        try:
            return False, asyncio.run(self.called(name, arguments))[0].text
        except Exception as error:
            return True, str(error)


class TestMcpServers(Asking):
    SCHEMA = {"type": "object", "properties": {"invoice": {"type": "string"}, "amount": {"type": "integer"}}, "required": ["invoice", "amount"]}

    def server(self, *tools):
        mcp, mcp.types = types.ModuleType("mcp"), types.ModuleType("mcp.types")
        mcp.types.Tool, mcp.types.TextContent = McpTool, McpText
        server = McpServer()
        with mock.patch.dict(sys.modules, {"mcp": mcp, "mcp.types": mcp.types}):
            agents.add_to_mcp_server(server, tools, run=self.run_id, connect=connect)
        return server

    def test_a_server_lists_its_tools_and_records_their_calls_once(self):
        server = self.server(self.charge(schema=self.SCHEMA))
        self.assertEqual(asyncio.run(server.listed()), [McpTool("charge", "Charge an invoice.", self.SCHEMA)])
        for _ in range(2):
            self.assertEqual(server.ask("charge", invoice="invoice_442", amount=1200), (False, RECORDED))
        self.assertEqual(server.ask("charge", invoice="invoice_442", amount=9), (True, SENTENCES["key_taken"]))
        self.assertEqual(server.ask("refund"), (True, "There is no tool refund."))
        self.assertEqual(self.recorded()[0], 1)

    def test_a_server_of_another_version_is_named(self):
        with self.assertRaisesRegex(TypeError, "version 1"):
            agents.add_to_mcp_server(object(), [], run=self.run_id, connect=connect)

    def test_a_tool_that_no_client_could_call_is_refused(self):
        with self.assertRaisesRegex(ValueError, "JSON Schema"):
            self.server(self.charge())
        with self.assertRaisesRegex(ValueError, "outbox_hook"):
            self.server(self.charge(schema=self.SCHEMA, step=FROM_TOOL_USE_ID))


class TestRecipes(Asking):
    """The recipes of docs/agents.md, with stand-ins of the names that they import."""

    def ask_by(self, title, modules, ask):
        made = {name: types.ModuleType(name) for name in modules}
        for name, members in modules.items():
            vars(made[name]).update(members)
        names = {"charge": self.charge(), "connect": connect}
        with mock.patch.dict(sys.modules, made):
            exec(compile(live_frameworks.recipe(title), title, "exec", dont_inherit=True), names)
        for _ in range(2):
            self.assertEqual(asyncio.run(ask(names)), RECORDED)
        self.assertEqual(self.recorded()[0], 1)

    def test_openai_agents(self):
        self.ask_by("OpenAI Agents", {"agents": {
            "Agent": lambda **given: given, "RunContextWrapper": list, "Runner": None, "function_tool": lambda function: function,
        }}, lambda names: names["create_charge"](types.SimpleNamespace(context=self.run_id), "invoice_442", 1200))

    def test_pydantic_ai(self):
        agent = types.SimpleNamespace(tool=lambda function: function)
        self.ask_by("Pydantic AI", {"pydantic_ai": {"Agent": lambda **given: agent, "RunContext": list}},
                    lambda names: names["create_charge"](types.SimpleNamespace(deps=self.run_id), "invoice_442", 1200))

    def test_langgraph(self):
        self.ask_by("LangGraph", {
            "langchain_core": {}, "langgraph": {}, "langchain_core.runnables": {"RunnableConfig": dict},
            "langchain_core.tools": {"tool": lambda function: function}, "langgraph.prebuilt": {"ToolNode": list},
        }, lambda names: names["create_charge"]("invoice_442", 1200, {"configurable": {"thread_id": self.run_id}}))


class TestDescriptions(unittest.TestCase):
    def test_a_tool_without_a_schema_takes_any_arguments(self):
        @outbox_tool("stripe/create_charge", step="charge", scope=lambda a: a["invoice"], wait=20)
        def charge(connection, arguments):
            """Charge an invoice."""
            return {}

        # The Claude Agent SDK takes what lacks one of the two for names of arguments.
        self.assertEqual(charge.schema, {"type": "object", "properties": {}})

    def test_a_function_without_a_docstring_is_no_tool(self):
        def silent(connection, arguments):
            return {}

        with self.assertRaisesRegex(ValueError, "docstring"):
            outbox_tool("p/o", step="s", scope=lambda arguments: "b", schema={})(silent)

    def test_no_framework_is_imported_before_it_is_used(self):
        self.assertNotIn("claude_agent_sdk", sys.modules)


if __name__ == "__main__":
    unittest.main()
