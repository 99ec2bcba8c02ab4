"""The tools and the recipes of docs/agents.md with the frameworks themselves. `make clients-live` runs this."""

import asyncio
import json
import unittest
from pathlib import Path

import world
from drainer.agents import outbox_server
from drainer.errors import SENTENCES

def connect():
    import psycopg2

    return psycopg2.connect(world.AGENT)


RECIPES = Path(__file__).resolve().parents[3] / "docs" / "agents.md"
ASKED = {"invoice": "invoice_442", "amount": 1200}


def recipe(title):
    """The code under that title."""
    return RECIPES.read_text().split(f"## {title}\n", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]


class TestFrameworks(world.Database):
    def charge(self):
        from test_agents import Asking

        return Asking.charge(self)

    def names(self, title, needs):
        if lacking := world.missing(("psycopg2", *needs)):
            self.skipTest(f"{lacking} is not installed")
        names = {"charge": self.charge(), "connect": connect}
        exec(compile(recipe(title), title, "exec", dont_inherit=True), names)
        return names

    def assert_recorded_once(self, *answers):
        self.assertEqual(set(map(str, answers)), {SENTENCES["recorded"]})
        self.assertEqual(self.admin("SELECT count(*) FROM outbox.intent WHERE agent_run_id = %s", self.run_id), [(1,)])

    def test_claude_agent_sdk(self):
        if lacking := world.missing(("psycopg2", "claude_agent_sdk", "mcp")):
            self.skipTest(f"{lacking} is not installed")
        from mcp import types

        server = outbox_server("billing", [self.charge()], run=self.run_id, connect=connect)["instance"]
        request = types.CallToolRequest(method="tools/call", params=types.CallToolRequestParams(name="charge", arguments=ASKED))

        async def ask():
            return (await server.request_handlers[types.CallToolRequest](request)).root.content[0].text

        self.assert_recorded_once(*(asyncio.run(ask()) for _ in range(2)))

    def test_mcp_sdk(self):
        if lacking := world.missing(("psycopg2", "mcp")):
            self.skipTest(f"{lacking} is not installed")
        from drainer.agents import add_to_mcp_server
        from mcp import types
        from mcp.server.lowlevel import Server
        from test_agents import Asking, TestMcpServers

        server = Server("billing")
        add_to_mcp_server(server, [Asking.charge(self, schema=TestMcpServers.SCHEMA)], run=self.run_id, connect=connect)
        request = types.CallToolRequest(method="tools/call", params=types.CallToolRequestParams(name="charge", arguments=ASKED))

        async def ask():
            return (await server.request_handlers[types.CallToolRequest](request)).root.content[0].text

        self.assert_recorded_once(*(asyncio.run(ask()) for _ in range(2)))

    def test_openai_agents(self):
        names = self.names("OpenAI Agents", ("agents",))
        from agents.tool_context import ToolContext

        async def ask(call):
            context = ToolContext(context=self.run_id, tool_name="create_charge", tool_call_id=call, tool_arguments=json.dumps(ASKED))
            return await names["create_charge"].on_invoke_tool(context, json.dumps(ASKED))

        self.assert_recorded_once(*(asyncio.run(ask(call)) for call in ("call_1", "call_2")))

    def test_pydantic_ai(self):
        names = self.names("Pydantic AI", ("pydantic_ai",))
        from pydantic_ai.models.test import TestModel

        for _ in range(2):  # the model that the package has for tests calls every tool once
            done = asyncio.run(names["agent"].run("charge it", deps=self.run_id, model=TestModel()))
        self.assert_recorded_once(json.loads(done.output)["create_charge"])

    def test_langgraph(self):
        names = self.names("LangGraph", ("langchain_core", "langgraph"))
        config = {"configurable": {"thread_id": self.run_id}}
        self.assert_recorded_once(*(asyncio.run(names["create_charge"].ainvoke(ASKED, config)) for _ in range(2)))


if __name__ == "__main__":
    unittest.main()
