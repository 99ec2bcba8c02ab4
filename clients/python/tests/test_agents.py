"""Tools of agent frameworks, against the published interface of the Claude Agent SDK for Python, 0.1."""

import asyncio
import dataclasses
import sys
import types
import unittest
from unittest import mock

import live_frameworks
import world
from drainer import agents
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
        self.assertEqual(answer, {"content": [{"type": "text", "text": agents.FAULT}], "is_error": True})
        self.assertEqual(self.recorded(), (0, 0))

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
    """The two decorators of mcp.server.lowlevel.Server, version 1, and what it makes of an exception."""

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
    def test_a_function_without_a_docstring_is_no_tool(self):
        def silent(connection, arguments):
            return {}

        with self.assertRaisesRegex(ValueError, "docstring"):
            outbox_tool("p/o", step="s", scope=lambda arguments: "b", schema={})(silent)

    def test_no_framework_is_imported_before_it_is_used(self):
        self.assertNotIn("claude_agent_sdk", sys.modules)


if __name__ == "__main__":
    unittest.main()
