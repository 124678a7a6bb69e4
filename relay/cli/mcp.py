"""`relay mcp`: tools for AI agents, over stdio, by the Model Context Protocol.

Carries the tools of `relay.cli.agent` over the official package's server, on Trio.  stdout is the
protocol's alone, notes go to stderr.  The process lives as long as its client keeps stdin open;
the relay may come and go meanwhile.  A call that waits says every few seconds that it does, so
that a client which counts the silence does not give up.
"""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay import __version__
from relay.cli import exits, options
from relay.cli.exits import Failure

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult

    from relay.cli.agent.client import AgentClient
    from relay.cli.agent.tools import Tool

SIGN_OF_LIFE_EVERY = 5.0  # seconds
LAST_WORDS = 3.0  # seconds that deleting the key may take at the end


@click.command()
@options.data_dir
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="RELAY_TOKEN",
    help="An API key to act with, instead of one of its own; better given as $RELAY_TOKEN, where "
    "other users cannot see it.",
)
@click.option(
    "--admin",
    is_flag=True,
    help="Act as the administrator: every inbox, and mail from any address.",
)
@click.option(
    "--allow-send",
    is_flag=True,
    help="Let it send, from the addresses of the inboxes that it made.",
)
@click.option(
    "--allow-private",
    is_flag=True,
    help="Let complete_signup open links to this machine and its network.",
)
def mcp(
    data_dir: Path, token: str | None, admin: bool, allow_send: bool, allow_private: bool
) -> None:
    """Serve tools for AI agents over stdio (Model Context Protocol).

    create_inbox, wait_for_mail, latest_mail, search_mail, wait_for_any_mail, read_mail, tag_mail,
    check_mail, release_mail, extract_code, extract_link, complete_signup, send, queue_state. They
    act with a key of their own, made at the first call and deleted at the end:
    it opens the inboxes that it made and no others, and sends nothing without --allow-send.
    An MCP client starts this command by itself, from an entry like

    \b
        {"mcpServers": {"relay": {"command": "relay",
                                  "args": ["mcp", "--data-dir", "/path/to/var"]}}}
    """
    try:
        import mcp_types  # noqa: F401 - only to see whether it is there
    except ImportError:
        raise Failure(
            "`relay mcp` needs the package mcp: pip install 'relay-mail[mcp]', or `make setup`."
        ) from None
    import trio

    if admin and token:
        raise Failure("--admin and --token (or $RELAY_TOKEN) exclude each other.", exits.USAGE)
    trio.run(_serve, data_dir, token, admin, allow_send, allow_private)


async def _serve(
    data_dir: Path, token: str | None, admin: bool, allow_send: bool, allow_private: bool
) -> None:
    import httpx
    import trio
    from mcp.server.stdio import stdio_server

    from relay.cli.agent.client import AgentClient

    async with httpx.AsyncClient(trust_env=False) as client:
        agent = AgentClient(
            client,
            data_dir,
            token=token,
            admin=admin,
            allow_send=allow_send,
            allow_private=allow_private,
        )

        async def clean_up() -> None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                await agent.delete_own_key()

        async def end_at_a_signal() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    await clean_up()
                    # The thread that reads stdin cannot be cancelled: end as if nobody had asked.
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_at_a_signal)
            nursery.start_soon(agent.keep_key)
            try:
                async with stdio_server() as (reading, writing):
                    server = make_server(agent)
                    await server.run(reading, writing, server.create_initialization_options())
            finally:
                await clean_up()
            nursery.cancel_scope.cancel()


def make_server(agent: AgentClient) -> Server[Any]:
    """Return the protocol's server over the tools."""
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS, ListToolsResult

    from relay.cli.agent.tools import INSTRUCTIONS, TOOLS

    tools = {tool.name: tool for tool in TOOLS}

    async def list_tools(context: ServerRequestContext[Any], _: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_described(tool) for tool in TOOLS])

    async def call_tool(context: ServerRequestContext[Any], params: Any) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            raise MCPError(code=INVALID_PARAMS, message=f"There is no tool {params.name!r}.")
        return await perform(agent, tool, params.arguments or {}, context)

    return Server(
        "relay",
        version=__version__,
        title="Relay",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(tool: Tool) -> Any:
    import mcp_types

    return mcp_types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(by_alias=True),
        output_schema=tool.result.model_json_schema(by_alias=True, mode="serialization"),
        annotations=mcp_types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=False,
            open_world_hint=tool.open_world,
        ),
    )


async def perform(
    agent: AgentClient, tool: Tool, arguments: dict[str, Any], context: ServerRequestContext[Any]
) -> CallToolResult:
    """Run a tool; whatever goes wrong is told to the agent as the tool's error."""
    import trio
    from mcp_types import CallToolResult, TextContent
    from pydantic import ValidationError

    async def show_life() -> None:
        began = trio.current_time()
        while True:
            await trio.sleep(SIGN_OF_LIFE_EVERY)
            waited = trio.current_time() - began
            await context.session.report_progress(waited, message=f"waiting for {waited:.0f} s")

    sentence = None
    result = None
    try:
        wanted = tool.arguments.model_validate(arguments)
    except ValidationError as error:
        sentence = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or tool.name}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
    else:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show_life)
            try:
                result = await tool.run(agent, wanted)
            except Failure as failure:
                sentence = str(failure)
            except Exception as error:  # a fault of ours must not end the agent's session
                sentence = f"Internal failure: {type(error).__name__}."
                traceback.print_exception(error)  # on stderr, where clients keep it
            nursery.cancel_scope.cancel()
    if result is None:
        text = TextContent(type="text", text=sentence or "")
        return CallToolResult(content=[text], is_error=True)
    return CallToolResult(
        content=[TextContent(type="text", text=result.model_dump_json(by_alias=True))],
        structured_content=result.model_dump(mode="json", by_alias=True),
    )
