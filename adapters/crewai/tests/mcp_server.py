"""An MCP server over standard input and output: one tool, whose calls are counted in a file."""

import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("prices")


@server.tool()
def price(thing: str) -> str:
    """Return the price of a thing."""
    with Path(sys.argv[1]).open("a") as calls:
        calls.write(f"{thing}\n")
    return f"{thing}: 42"


if __name__ == "__main__":
    server.run()
